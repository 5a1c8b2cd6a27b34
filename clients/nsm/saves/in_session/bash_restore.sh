# shellcheck shell=bash
# Restores the state of a Bash session from files, and writes what came of each thing. The session's own
# shell reads this file. There is no function in it: variables would be local to that.

nsm_place=/tmp/.nsm-save
builtin : >"$nsm_place/rows"
builtin shopt -s extglob # functions may be written with it; the options of the save come last
builtin cd -- "$(<"$nsm_place/cwd")" 2>/dev/null \
  || builtin printf '%s\0' "directory the working directory" "it is not there" >>"$nsm_place/rows"
while IFS= builtin read -r -d '' nsm_name && IFS= builtin read -r -d '' nsm_text; do
  nsm_why=
  { builtin eval "$nsm_text"; } 2>"$nsm_place/stderr" || nsm_why=$(<"$nsm_place/stderr")
  case $nsm_name in options*) continue ;; esac
  builtin printf '%s\0' "$nsm_name" "${nsm_why:0:300}" >>"$nsm_place/rows"
done <"$nsm_place/entries" || builtin :
builtin unset nsm_place nsm_name nsm_text nsm_why
