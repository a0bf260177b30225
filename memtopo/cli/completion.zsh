#compdef memtopo
# Completion of memtopo for zsh: eval "$(memtopo completion zsh)", after compinit; or this text as the file _memtopo in
# a folder of $fpath.
_memtopo() {
    local line
    local -a found open
    for line in "${(@f)$(${~words[1]} completion zsh "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)}"; do
        [[ -n $line ]] || continue
        local value=${line%%$'\t'*}
        local text=${line#*$'\t'}
        if [[ $value == *[=:/] ]]; then
            open+=("$value")
        else
            found+=("${value//:/\\:}${text:+:$text}")
        fi
    done
    if (( ${#found} + ${#open} )); then
        (( ${#open} )) && compadd -S '' -- $open
        (( ${#found} )) && _describe memtopo found
    else
        compset -P '--*='
        _files
    fi
}
if [[ ${funcstack[1]} == _memtopo ]]; then
    _memtopo "$@"
else
    compdef _memtopo memtopo
fi
