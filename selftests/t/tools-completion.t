#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The Tab key: all shells complete each command, each option that its help lists, and values.

. "$(dirname "$0")/tools-lib.sh"
. selftests/vm/lib.sh
need zsh:zsh fish:fish shellcheck:shellcheck

wrong 'completion: no shell' 'bash, zsh or fish' completion
wrong 'completion: another shell' "'tcsh' is not bash, zsh or fish" completion tcsh
wrong 'completion: two shells' "'zsh' is too many" completion bash zsh
check 'completion bash' sh -c "'$hetmem' completion bash >'$tmp/bash'"
check 'completion zsh' sh -c "'$hetmem' completion zsh >'$tmp/zsh'"
check 'completion fish' sh -c "'$hetmem' completion fish >'$tmp/fish'"
check 'fish can read its own' fish --no-execute "$tmp/fish"
check 'shellcheck has nothing to say' shellcheck -s bash "$tmp/bash"
check 'zsh can read its own' zsh -n "$tmp/zsh"

# What zsh does when Tab is pressed behind each line of stdin: $tmp/zsh-completed has the line
# and, after it, what was found, a word a line.
cat >"$tmp/drive" <<'END'
zmodload zsh/zpty || exit
zpty shell zsh -f -i
out=$1
zpty -w shell "PS1=; autoload -Uz compinit; compinit -D -u; source $2; zstyle ':completion:*' menu no
compadd() { local -a found; builtin compadd -O found \"\$@\"; print -rl -- \$found >>$out; builtin compadd \"\$@\" }
tab() { print -r -- \"? \$BUFFER\" >>$out; _main_complete; print . >>$out; }
zle -C tab complete-word tab; bindkey '^I' tab; bindkey '^U' kill-buffer; print . >>$out"
n=0
wait() {
	local i
	(( n++ ))
	for i in {1..1200}; do
		[[ -e $out && $(grep -cx '\.' $out) -ge $n ]] && return
		# time: the pace of looks
		sleep 0.05
	done
	exit 1
}
wait
while IFS= read -r line; do
	zpty -w -n shell $'\C-u'"$line"$'\t'
	wait
done
zpty -d shell
END

# completed SHELL LINE: what Tab finds, a word a line.
completed()
{
	if [ "$1" = zsh ]; then
		awk -v line="? $2" '$0 == line { on = 1; next } on && $0 == "." { exit } on' \
			"$tmp/zsh-completed" | grep . | sed 's/=$//' | sort -u
		return
	fi
	if [ "$1" = fish ]; then
		# shellcheck disable=SC2016
		HOME=$tmp fish --no-config -c 'source $argv[1]; complete -C $argv[2]' "$tmp/fish" "$2" |
			cut -f1 | sed 's/^--[a-z-]*=//; s/=$//' | grep . | sort -u
		return
	fi
	bash --norc -c '. "$1"; compopt() { :; }
		# Readline splits at =, too.
		line=${2//=/ = }
		read -ra COMP_WORDS <<<"$line"
		case $line in *" ") COMP_WORDS+=("") ;; esac
		COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
		_hetmem && printf "%s\n" "${COMPREPLY[@]}"' bash "$tmp/bash" "$2" |
		grep . | sed 's/=$//' | sort -u
}

commands=$("$hetmem" --help | sed -n 's/^  \([a-z]*\) .*/\1/p')
benches=$("$hetmem" bench --help | sed -n 's/^  \([a-z]*\) .*/\1/p')
also 'there are commands and benchmarks' test "$(wc -w <<<"$commands")" -ge 9 -a "$(wc -w <<<"$benches")" -ge 15
lines()
{
	local name

	printf 'hetmem %s\n' '' 'bench ' 'map --color=' 'map --color a' 'replay --work ' \
		'replay --driver=' 'run --policy ' 'run printen' \
		'bench worst --size ' 'bench worst s' 'bench kernel ' 'spec ma' \
		"replay $tmp/fil" "demo --file $tmp/fil" 'prefetch ' 'completion '
	for name in $commands; do
		[ "$name" = bench ] || echo "hetmem $name --"
	done
	for name in $benches; do
		echo "hetmem bench $name --"
	done
}
touch "$tmp/file"
lines >"$tmp/lines"
check 'zsh presses Tab' sh -c "zsh -f '$tmp/drive' '$tmp/zsh-completed' '$tmp/zsh' <'$tmp/lines'"

# finds SHELL LINE WORD...: that, and nothing else.
finds()
{
	local shell=$1 line=$2

	shift 2
	check "$shell: '$line'" diff <(printf '%s\n' "$@" | sort -u) <(completed "$shell" "$line")
}

# What the help of a command lists: in the usage, and at the beginning of a line.
options()
{
	# shellcheck disable=SC2086
	{ "$hetmem" $1 --help; echo --help; } | sed -n '/^Usage/,/^[^ U]/p; /^  *--/p; /^--help/p' |
		grep -oE -- "(^|[ [])--[a-z][a-z-]*" | tr -d ' [' | sort -u
}

for shell in bash zsh fish; do
	# fish lists options behind a dash alone.
	if [ $shell = fish ]; then
		# shellcheck disable=SC2086
		finds fish 'hetmem ' $commands
		finds fish 'hetmem --' --help --version
		# shellcheck disable=SC2086
		finds fish 'hetmem bench ' $benches
	else
		# shellcheck disable=SC2086
		finds $shell 'hetmem ' $commands --help --version
		# shellcheck disable=SC2086
		finds $shell 'hetmem bench ' $benches --help
	fi
	for name in $commands; do
		[ "$name" = bench ] || check "$shell: options of $name" \
			diff <(options "$name") <(completed $shell "hetmem $name --")
	done
	for name in $benches; do
		check "$shell: options of bench $name" \
			diff <(options "bench $name") <(completed $shell "hetmem bench $name --")
	done
	finds $shell 'hetmem map --color=' auto always never
	finds $shell 'hetmem map --color a' auto always
	finds $shell 'hetmem replay --work ' idle lag busy
	finds $shell 'hetmem replay --driver=' cuda soft
	finds $shell 'hetmem bench worst --size ' full small
	finds $shell 'hetmem bench worst s' streams-{1,2,8,128,1024}
	finds $shell 'hetmem bench kernel ' residency track busy device events
	finds $shell 'hetmem spec ma' managed
	finds $shell 'hetmem run --policy ' bind interleave local prefer
	finds $shell 'hetmem completion ' bash zsh fish
	completed $shell 'hetmem run printen' >"$tmp/out"
	also "$shell: a command" grep -qx printenv "$tmp/out"
	completed $shell "hetmem replay $tmp/fil" >"$tmp/out"
	also "$shell: a file" grep -qE '(^|/)file$' "$tmp/out"
	completed $shell "hetmem demo --file $tmp/fil" >"$tmp/out"
	also "$shell: a file of an option" grep -qE '(^|/)file$' "$tmp/out"
	completed $shell 'hetmem prefetch ' >"$tmp/out"
	also "$shell: a process" grep -qxE '[0-9]+' "$tmp/out"
done

# The words of one argument are in two places.
check 'the programs of bench worst' diff <(completed bash 'hetmem bench worst ' | sort) \
	<("$hetmem" bench worst --help | sed -n 's/^  \([a-z0-9-]*\)  .*/\1/p' | grep -v ^-- | sort)
done_testing
