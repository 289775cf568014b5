#compdef listedge
# Completion of listedge for zsh, behind compinit: source <(listedge completion zsh)
_listedge() {
	local -a offers
	offers=("${(@f)$("$words[1]" complete -- "${(@)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)}")
	if [[ -z $offers[1] ]]; then
		_files
		return
	fi
	offers=("${(@)offers//:/\\:}")
	offers=("${(@)offers/$'\t'/:}")
	_describe listedge offers
}
compdef _listedge listedge
