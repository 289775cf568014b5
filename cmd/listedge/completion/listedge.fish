# Completion of listedge for fish: listedge completion fish | source
function __listedge_offers
	set -l before (commandline -opc)
	set -l last (commandline -ct)
	set -l offers ($before[1] complete -- $before[2..-1] "$last" 2>/dev/null)
	if set -q offers[1]
		printf '%s\n' $offers
	else
		__fish_complete_path "$last"
	end
end
complete -c listedge -f -a '(__listedge_offers)'
