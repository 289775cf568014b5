# Completion of listedge for bash: source <(listedge completion bash)
_listedge() {
	local words last IFS=$' \t\n'
	# COMP_WORDS has words broken at : and =, as $2 is; the line has them whole.
	read -ra words <<<"${COMP_LINE:0:COMP_POINT}|"
	last=${words[${#words[@]} - 1]%|}
	IFS=$'\n'
	COMPREPLY=($("$1" complete -- "${words[@]:1:${#words[@]}-2}" "$last" 2>/dev/null))
	COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
	COMPREPLY=("${COMPREPLY[@]#"${last%"$2"}"}")
}
complete -o default -F _listedge listedge
