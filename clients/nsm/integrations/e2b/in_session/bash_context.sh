# One context of Bash: evaluates code piece by piece. A request is a line: token, then code and
# settings of variables, each in base64.
exec 3<&0 0</dev/null
__nsm_idle=$1 __nsm_count=0
set --
trap : INT
while IFS=' ' read -r -u 3 -t "$__nsm_idle" __nsm_token __nsm_code __nsm_vars; do
  __nsm_count=$((__nsm_count + 1))
  __nsm_code=$(printf %s "$__nsm_code" | base64 -d && printf x)
  __nsm_code=${__nsm_code%x}
  __nsm_undo=
  if [[ $__nsm_vars ]]; then
    __nsm_vars=$(printf %s "$__nsm_vars" | base64 -d)
    __nsm_undo=$(for __nsm_name in $(printf %s "$__nsm_vars" | sed -n 's/^export \([A-Za-z_0-9]*\)=.*/\1/p'); do
      declare -p "$__nsm_name" 2>/dev/null || printf 'unset %s\n' "$__nsm_name"
    done)
    eval "$__nsm_vars"
  fi
  eval "$__nsm_code" 3<&-
  __nsm_status=$?
  eval "$__nsm_undo"
  if ((__nsm_status)); then
    printf '\036%s.{"type":"error","name":"ExitCode","value":"%d","traceback":"exit code %d"}\n' \
      "$__nsm_token" "$__nsm_status" "$__nsm_status"
  fi
  printf '\036%s.{"type":"number_of_executions","execution_count":%d}\n' "$__nsm_token" "$__nsm_count"
  printf '\036%s.{"type":"end"}\n' "$__nsm_token"
  printf '\036%s.{}\n' "$__nsm_token" >&2
done
