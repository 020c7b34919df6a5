# shellcheck shell=sh
# What the scripts beside it have in common. POSIX sh; sourced, not run.
#
# The rule above all: only a finding takes a node out of service. An exporter that is
# absent, too old, crashes, hangs or does not know is no finding.

# slurmd and others start programs with little in PATH.
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Settings; see README.md. The file may set any of them. One that is no shell script is
# not read: reading it would end this shell.
gdr_config=${GDR_CONFIG:-/etc/default/gdr_exporter-slurm}
# shellcheck source=/dev/null
if [ -r "$gdr_config" ] && sh -n "$gdr_config" 2>/dev/null; then . "$gdr_config"; fi
GDR_DRAIN_ON=${GDR_DRAIN_ON:-critical}
GDR_QUIESCE=${GDR_QUIESCE-2m}
GDR_EPILOG_PROBE=${GDR_EPILOG_PROBE:-yes}
GDR_EPILOG_DRAIN=${GDR_EPILOG_DRAIN:-no}

# gdr_seconds TEXT DEFAULT: TEXT if it is a number of seconds, else DEFAULT.
gdr_seconds() {
	case $1 in
	'' | 0* | *[!0-9]* | ??????*) echo "$2" ;;
	*) echo "$1" ;;
	esac
}
GDR_CHECK_TIMEOUT=$(gdr_seconds "${GDR_CHECK_TIMEOUT:-}" 10)
GDR_EPILOG_LIMIT=$(gdr_seconds "${GDR_EPILOG_LIMIT:-}" 120)

# gdr_found is the code with which a script's main says that there is a finding to act
# on. No shell ends with it by itself, whatever goes wrong.
# shellcheck disable=SC2034
gdr_found=86

# gdr_log TEXT: to the journal, and to whoever reads what the script writes.
gdr_log() {
	echo "${gdr_me:-gdr_exporter}: $*" >&2
	timeout 2 logger -t "${gdr_me:-gdr_exporter}" -- "$*" 2>/dev/null || :
}

# gdr_bounded FILE SECONDS COMMAND...: runs a command, with its output in FILE, and
# returns its exit code, or 124 if it has not ended in time. It does not wait for the
# end of what it kills: a process that hangs in a driver cannot be killed, and must not
# keep a job from starting.
gdr_bounded() {
	gdr_out=$1 gdr_most=$2
	shift 2
	rm -f "$gdr_out.code"
	(
		timeout -k 2 "$gdr_most" "$@" >"$gdr_out" 2>/dev/null
		echo $? >"$gdr_out.part" && mv "$gdr_out.part" "$gdr_out.code"
	) </dev/null >/dev/null 2>&1 &
	gdr_polls=$(((gdr_most + 4) * 10))
	until [ -e "$gdr_out.code" ]; do
		[ "$gdr_polls" -gt 0 ] || return 124
		gdr_polls=$((gdr_polls - 1))
		sleep 0.1
	done
	return "$(cat "$gdr_out.code")"
}

# gdr_verdict SEVERITY: prints one line, and returns 1 if gdr_exporter check has a
# finding of that severity (critical or warning) or above, 0 if it has none, 3 if it
# cannot tell.
#
# The exit code alone does not do: a program that crashes or does not know the command
# ends with 1 or 2 too. So the report must be whole, and say the same code.
gdr_verdict() {
	case $1 in
	critical | warning) ;;
	*)
		echo "not judged: no severity \"$1\", only critical and warning"
		return 3
		;;
	esac
	if ! command -v gdr_exporter >/dev/null 2>&1; then
		echo "not judged: gdr_exporter is not installed"
		return 3
	fi
	if ! gdr_dir=$(mktemp -d); then
		echo "not judged: no directory for temporary files"
		return 3
	fi
	gdr_bounded "$gdr_dir/report" $((GDR_CHECK_TIMEOUT + 10)) gdr_exporter check --fail-on="$1" --timeout="${GDR_CHECK_TIMEOUT}s" --output=json
	gdr_code=$?
	gdr_headline=$(sed -n 's/^  "headline": "\(.*\)",$/\1/p' "$gdr_dir/report" 2>/dev/null)
	gdr_said=
	if grep -q '^  "schema": "gdr_exporter/check/1",$' "$gdr_dir/report" 2>/dev/null &&
		! grep -q '^  "replay": "..*",$' "$gdr_dir/report" &&
		[ "$(tail -n 1 "$gdr_dir/report")" = '}' ]; then
		gdr_said=$(sed -n 's/^  "exit_code": \([0-9]*\),$/\1/p' "$gdr_dir/report")
	fi
	rm -rf "$gdr_dir"
	if [ "$gdr_said" != "$gdr_code" ]; then
		echo "not judged: gdr_exporter check gave no whole report, exit code $gdr_code"
		return 3
	fi
	echo "$gdr_headline"
	case $gdr_code in
	0) return 0 ;;
	1 | 2) return 1 ;; # --fail-on has left out what is below the severity
	*) return 3 ;;
	esac
}
