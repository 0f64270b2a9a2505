#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The guides of Documentation/: their commands, and troubleshooting.md beside the lines that
# doctor can print.
. "$(dirname "$0")/tap.sh"

guides='troubleshooting hmm-host grace without-a-gpu contributing live record questions'
page=Documentation/troubleshooting.md

# Every doctor_report() of the sources that can be another thing than ok: "name" and "text",
# with N for a number and ... for whatever else differs.
cat >"$tmp/lines.pl" <<'EOP'
undef $/;
my ($what, %seen) = shift;
sub literals { join '', $_[0] =~ /"((?:[^"\\]|\\.)*)"/g }
sub plain
{
	my $s = shift;

	$s =~ s/(?<=device )%d/N/g;
	$s =~ s/%[a-z]*[a-z]/.../g;
	$s =~ s/(\.\.\.)+/.../g;
	return $s;
}
for my $file (@ARGV) {
	open my $in, '<', $file or die;
	my $text = <$in>;
	while ($text =~ /\n\t+doctor_report\(((?:[^()"]|"(?:[^"\\]|\\.)*"|(\((?:[^()"]|"(?:[^"\\]|\\.)*"|(?2))*\)))*)\);/g) {
		my ($call, @args, $at) = ($1, '');
		while ($call =~ /\G("(?:[^"\\]|\\.)*"|\((?:[^()"]|"(?:[^"\\]|\\.)*"|\([^()]*\))*\)|,|.)/gs) {
			if ($1 eq ',') { push @args, '' } else { $args[-1] .= $1 }
		}
		s/^\s+|\s+$//g for @args;
		next if $args[1] eq 'CHECK_OK';
		$seen{plain(literals($args[2]))} = 1 if $what eq 'names' && $args[2] =~ /"/;
		next if $what ne 'texts';
		$seen{plain(literals($args[4]))} = 1;
		for (splice @args, 5) {
			while (/"((?:[^"\\]|\\.){20,})"/g) { $seen{plain($1)} = 1 }
		}
	}
	if ($text =~ /option_checks\[\] = \{(.*?)\n\};/s) {
		my $table = $1;
		while ($table =~ /\{ "(\w+)", CHECK_\w+,\s*"([^"]*)"/g) {
			$seen{$what eq 'names' ? "CONFIG_$1" : $2} = 1;
		}
	}
	next if $what ne 'names';
	# Names that are put together.
	while ($text =~ /\bname = (?:[^;"]*)"(device [^"]*)"|snprintf\(name, sizeof\(name\), "(device [^"]*)"/g) {
		$seen{plain($1 // $2)} = 1;
	}
	while ($text =~ /name = [^;]*xstrdup\("([^"]*)"\)[^;]*?(?:"([^"]*)"[^;]*)?;/g) {
		$seen{$_} = 1 for map { plain($_) } grep { defined } $1, $2;
	}
}
print map { "$_\n" } sort keys %seen;
EOP
printed() { perl "$tmp/lines.pl" "$1" tools/doctor/*.c | LC_ALL=C sort -u; }

# cells COLUMN: what is in backticks there, of all rows.
cells()
{
	awk -F' *[|] *' -v column="$1" '/^\|/ { print $(column + 1) }' $page | grep -o '`[^`]*`' |
		tr -d '`' | LC_ALL=C sort -u
}
also 'doctor has names' test "$(printed names | wc -l)" -ge 25
also 'and texts' test "$(printed texts | wc -l)" -ge 35
empty 'troubleshooting.md has every name that doctor can print, and no other' diff <(printed names) <(cells 1)
# absent: lines of stdin that no backticks of the page enclose.
absent()
{
	while read -r text; do grep -qF "\`$text\`" $page || echo "$text"; done
}
missing_texts() { printed texts | absent; }
empty 'and every text' missing_texts
empty 'and no other' comm -13 <(printed texts) <(cells 3)
whys() { sed -n '/why_none/,/^}/s/.*return "\(.*\)";/\1/p' tools/doctor/devices.c; }
missing_whys() { whys | absent; }
also 'a device has reasons' test "$(whys | wc -l)" -ge 2
empty 'and the page has them' missing_whys
# The library's reasons of the verdict, up to the first part that differs.
reasons()
{
	{
		sed -n '/^static void probe_migration/,/^}/p' lib/open.c
		sed -n '/^static void probe_pageable/,/^}/p' lib/open.c | tail -3
		grep -A2 'HETMEM_FEATURE_DEVICE, false,' lib/open.c
	} | sed -n 's/.*"\([a-z/][^"%]\{12,\}[^"%:( ]\).*/\1/p' | sed 's/[:(].*//; s/ *$//' | sort -u
}
missing_reasons()
{
	reasons | while read -r text; do grep -qF -e "- \`$text" $page || echo "$text"; done
}
also 'the verdict has reasons' test "$(reasons | wc -l)" -ge 5
empty 'and the page has them, too' missing_reasons

# Commands are indented blocks. One that ends with such a mark is not for this machine: only its
# words are looked at.
marks='as root|on such a machine|on Debian 13|takes minutes|takes hours'
commands() { sed '/^```/,/^```$/d' "Documentation/$1.md" | sed -n 's/^    //p' | grep -v '^ '; }
runs() { commands "$1" | grep -vE "# ($marks)\$"; }
others() { commands "$1" | grep -E "# ($marks)\$"; }

export PATH=$top/build:$PATH
unset HETMEM_DRIVER HETMEM_RESOURCE HETMEM_SOFT_MACHINE
for guide in $guides; do
	while read -r line; do
		status=0
		# Another user's files may be in /tmp.
		bash -c "${line//\/tmp\//$tmp/}" >"$tmp/out" 2>"$tmp/err" </dev/null || status=$?
		most=0
		# What is asked for is missing on most machines.
		[[ $line != *'hetmem doctor --require'* ]] || most=1
		if [ $status -le $most ] && { [ $status -eq 1 ] || [ ! -s "$tmp/err" ]; }; then
			pass "$guide.md: $line"
		else
			fail "$guide.md: $line" < <(echo "exit $status"; cat "$tmp/out" "$tmp/err")
		fi
	done < <(runs "$guide")
	also "$guide.md has commands" test "$(commands "$guide" | wc -l)" -ge 3
	check "$guide.md: the others are commands of bash" bash -n <(others "$guide")
done
also 'some run here' test "$(for guide in $guides; do runs "$guide"; done | wc -l)" -ge 12

# What guides give to commands.
patterns()
{
	for guide in $guides; do
		grep -ohE '\bT=[a-z]([a-z0-9-]*[a-z0-9])?' "Documentation/$guide.md"
	done | sed 's/T=//' | sort -u
}
unknown_patterns()
{
	patterns | while read -r word; do
		[ "$word" = failed ] || selftests/run-tests -l "$word" >/dev/null 2>&1 || echo "$word"
	done
}
empty 'every T= names tests' unknown_patterns
also 'there are patterns' test "$(patterns | wc -l)" -ge 8
targets()
{
	for guide in $guides; do commands "$guide"; done |
		grep -oE '\bmake( -[a-zA-Z]+)* [a-z][a-z_-]*\b' | sed 's/.* //' | sort -u
}
make -s help >"$tmp/help"
unknown_targets()
{
	targets | while read -r word; do
		grep -qE "\b$word\b" "$tmp/help" || echo "$word"
	done
}
empty 'every target is in make help' unknown_targets
also 'there are targets' test "$(targets | wc -l)" -ge 4
subcommands()
{
	for guide in $guides; do commands "$guide"; done | grep -oE '\bhetmem [a-z]+' | sort -u
}
options()
{
	local line sub option

	for guide in $guides; do commands "$guide"; done | sed 's/ -- .*//' |
	grep -E '\bhetmem [a-z]+ ' | while read -r line; do
		sub=$(grep -oE 'hetmem [a-z]+( (kernel|unified|agent|spill|alloc))?' <<<"$line" | head -1)
		# shellcheck disable=SC2086
		build/$sub --help >"$tmp/sub" 2>&1 || echo "$sub"
		grep -oE ' --[a-z]+' <<<"${line%%#*}" | while read -r option; do
			grep -qE -- "$option\b" "$tmp/sub" || echo "$sub $option"
		done
	done
}
empty 'every option is one of the command' options
also 'there are subcommands' test "$(subcommands | wc -l)" -ge 6

# What a page names must be there.
links()
{
	local guide path anchor

	for guide in $guides changelog security README; do
		grep -ohE '\]\([A-Za-z0-9_./-]+(#[a-z0-9-]+)?\)' "Documentation/$guide.md" | tr -d '()]' |
		while IFS='#' read -r path anchor; do
			path=Documentation/${path:-$guide.md}
			[ -e "$path" ] || { echo "$guide.md: $path"; continue; }
			[ -z "$anchor" ] || sed -n 's/^##* //p' "$path" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9\n-' |
				grep -qxF -- "$anchor" || echo "$guide.md: $path#$anchor"
		done
		grep -oE '`(lib|tools|kernel|selftests|include)/[A-Za-z0-9_./-]+`' "Documentation/$guide.md" | tr -d '`' |
		while read -r path; do [ -e "$path" ] || echo "$guide.md: $path"; done
	done
}
empty 'what a guide links or names is there' links
not_listed()
{
	for guide in $guides changelog security; do
		grep -qF "($guide.md)" Documentation/README.md || echo "$guide"
	done
}
empty 'each is in the index' not_listed
done_testing
