# Completion of memtopo for fish: memtopo completion fish > ~/.config/fish/completions/memtopo.fish
function __memtopo_complete
    set -l words (commandline -opc)
    set -l line (commandline -cp)
    set -l found ($words[1] completion fish "$line" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
        return
    end
    set -l word (commandline -ct)
    set -l option (string match -r -- '^--[a-z-]+=' $word)
    for file in (__fish_complete_path (string replace -r -- '^--[a-z-]+=' '' $word))
        echo "$option$file"
    end
end
complete -c memtopo -f -a '(__memtopo_complete)'
