# Completion of memtopo for bash: eval "$(memtopo completion bash)"
_memtopo() {
    local IFS=$'\n'
    COMPREPLY=($("$1" completion bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=:/] ]]; then
        compopt -o nospace
    fi
}
complete -o default -F _memtopo memtopo
