# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash
#
# The folders of lib/ from the top to the bottom: each may use itself and those behind it.
# open.c calls everything. The soft driver is an object of its own, upon the last three. So is
# what hetmem run preloads, upon inline functions of core. What it preloads with --device has
# all of the library in it.
layers='cuda open framework hint keep place spec adaptor vmm pool stream provider driver platform core'
soft_layers='soft driver platform core'

# upward [MORE]: of lines "FILE FOLDER OTHER ...", those whose FOLDER uses one that it may not.
upward()
{
	awk -v layers="$layers" -v soft="$soft_layers" '
		BEGIN {
			for (n = split(layers, name); n; n--)
				rank[name[n]] = n
			for (n = split(soft, name); n; n--)
				below_soft[name[n]] = n
		}
		$2 == "preload" { if ($3 != "preload" && $3 != "core") print; next }
		$2 == "soft" ? !below_soft[$3] : !rank[$2] || !rank[$3] || rank[$3] < rank[$2]'
}

# includes [LIB]: every include of a folder's header.
includes()
{
	grep -noE '^#include "[a-z]+/' -r "${1:-lib}" --include='*.[ch]' |
		sed -E 's,^(.*lib/)([a-z]+)(/[a-z_]+)?(\.[ch]):([0-9]+):#include "([a-z]+)/,\1\2\3\4:\5 \2 \6,'
}

# symbols DIRECTORY: every symbol that an object of a folder takes from another's; an object
# whose source is gone is of an earlier build.
symbols()
{
	local object source

	find "$1" -name '*.o' | while read -r object; do
		source=${object#*obj/}
		[ ! -e "${source%.o}.c" ] || nm "$object" | sed "s,^,$object ,"
	done | awk '
		{ folder = $1; sub(".*obj/lib/", "", folder); sub("[/.].*", "", folder) }
		folder == "soft" || folder == "preload" || folder == "cuda" { next }
		NF == 4 && $3 ~ /[TDBRVW]/ { of[$4] = folder }
		NF == 3 && $2 == "U" { file[++nr] = $1; by[nr] = folder; what[nr] = $3 }
		END {
			for (i = 1; i <= nr; i++)
				if (what[i] in of)
					print file[i], by[i], of[what[i]], what[i]
		}'
}
