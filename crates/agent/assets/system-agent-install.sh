#!/bin/sh
# Installs the node agent of Drover and connects it to the management plane.
#
#   curl -fL https://SERVER/system-agent-install.sh | sudo sh -s - --server https://SERVER --token TOKEN \
#       --ca-checksum SUM --worker
#
# sudo is not needed as root.
#
# It takes the arguments and environment variables of Rancher's system-agent installer, uses its paths, and installs the
# agent under its name, so that either can replace the other. Needs a POSIX shell and curl or wget.
#
# Arguments (or the variable in brackets):
#   --all-roles, -a | --controlplane, -p | --etcd, -e | --worker, -w | --no-roles   [CATTLE_ROLE_CONTROLPLANE, _ETCD, _WORKER, _NONE]
#   --node-name, -n NAME          [CATTLE_NODE_NAME]
#   --address ADDR                [CATTLE_ADDRESS]            an address, an interface, or a metadata keyword
#   --internal-address, -i ADDR   [CATTLE_INTERNAL_ADDRESS]
#   --label, -l KEY=VALUE         [CATTLE_LABELS]             may be repeated
#   --taint, --taints K=V:EFFECT  [CATTLE_TAINTS]             may be repeated
#   --server, -s URL              [CATTLE_SERVER]
#   --token, -t TOKEN             [CATTLE_TOKEN]
#   --ca-checksum, -c SHA256      [CATTLE_CA_CHECKSUM]
#   --insecure                    accepted for compatibility: without a checksum nothing is pinned anyway
# Further variables:
#   CATTLE_REMOTE_ENABLED=true, CATTLE_LOCAL_ENABLED=false, CATTLE_PRESERVE_WORKDIR=false, CATTLE_ID,
#   CATTLE_AGENT_LOGLEVEL=info, CATTLE_AGENT_CONFIG_DIR=/etc/rancher/agent, CATTLE_AGENT_VAR_DIR=/var/lib/rancher/agent,
#   CATTLE_AGENT_BIN_PREFIX=/usr/local, CATTLE_AGENT_BINARY_BASE_URL=<server>/assets, CATTLE_AGENT_BINARY_URL,
#   CATTLE_AGENT_BINARY_CHECKSUM, CATTLE_AGENT_BINARY_LOCAL=true + CATTLE_AGENT_BINARY_LOCAL_LOCATION,
#   CATTLE_AGENT_UNINSTALL_URL, CATTLE_AGENT_UNINSTALL_CHECKSUM, CATTLE_AGENT_UNINSTALL_LOCAL=true +
#   CATTLE_AGENT_UNINSTALL_LOCAL_LOCATION,
#   CATTLE_AGENT_STRICT_VERIFY or STRICT_VERIFY, CATTLE_AGENT_RETRIES=4500, CATTLE_AGENT_RETRY_PAUSE=5,
#   CATTLE_AGENT_REFUSALS=12                consecutive rejections after which the token is considered invalid
#   CATTLE_AGENT_SYSTEMD_DIR=/etc/systemd/system,
#   CATTLE_AGENT_IMAGES_FROM_SERVER=false   also pull installer images from the server, before the image's registry;
#                                           the script that Drover serves sets true

# Everything is in functions that the last line calls, so that an incomplete download does nothing.

UNIT=rancher-system-agent
SYSTEMD_DIR=${CATTLE_AGENT_SYSTEMD_DIR:-/etc/systemd/system}

info() { echo "[INFO]  $*"; }
warn() { echo "[WARN]  $*" >&2; }
fatal() {
    echo "[FATAL] $*" >&2
    exit 1
}

need_value() {
    [ $# -ge 2 ] && [ -n "$2" ] || fatal "argument $1 requires a value"
}

# join LIST ITEM: a comma-separated list with one more item.
join() {
    if [ -n "$1" ]; then printf '%s,%s' "$1" "$2"; else printf '%s' "$2"; fi
}

parse_args() {
    while [ $# -gt 0 ]; do
        case "$1" in
        --all-roles | -a)
            CATTLE_ROLE_CONTROLPLANE=true CATTLE_ROLE_ETCD=true CATTLE_ROLE_WORKER=true
            shift
            ;;
        --controlplane | -p) CATTLE_ROLE_CONTROLPLANE=true && shift ;;
        --etcd | -e) CATTLE_ROLE_ETCD=true && shift ;;
        --worker | -w) CATTLE_ROLE_WORKER=true && shift ;;
        --no-roles) CATTLE_ROLE_NONE=true && shift ;;
        --insecure) shift ;;
        --node-name | -n) need_value "$@" && CATTLE_NODE_NAME=$2 && shift 2 ;;
        --address) need_value "$@" && CATTLE_ADDRESS=$2 && shift 2 ;;
        --internal-address | -i) need_value "$@" && CATTLE_INTERNAL_ADDRESS=$2 && shift 2 ;;
        --label | -l) need_value "$@" && CATTLE_LABELS=$(join "$CATTLE_LABELS" "$2") && shift 2 ;;
        --taint | --taints) need_value "$@" && CATTLE_TAINTS=$(join "$CATTLE_TAINTS" "$2") && shift 2 ;;
        --server | -s) need_value "$@" && CATTLE_SERVER=$2 && shift 2 ;;
        --token | -t) need_value "$@" && CATTLE_TOKEN=$2 && shift 2 ;;
        --ca-checksum | -c) need_value "$@" && CATTLE_CA_CHECKSUM=$2 && shift 2 ;;
        *) fatal "unknown argument $1" ;;
        esac
    done
}

is_true() {
    case "$1" in
    true | TRUE | True | 1 | yes) return 0 ;;
    *) return 1 ;;
    esac
}

setup_arch() {
    case "${CATTLE_AGENT_ARCH:-$(uname -m)}" in
    x86_64 | amd64) ARCH=amd64 ;;
    aarch64 | arm64) ARCH=arm64 ;;
    *) fatal "architecture $(uname -m) is not supported" ;;
    esac
}

# The prefix must be writable and not a separate mount: without the mount, the agent would be missing.
setup_prefix() {
    [ -z "$CATTLE_AGENT_BIN_PREFIX" ] || return 0
    CATTLE_AGENT_BIN_PREFIX=/usr/local
    if command -v mountpoint >/dev/null 2>&1 && mountpoint -q /usr/local; then
        CATTLE_AGENT_BIN_PREFIX=/opt/rancher-system-agent
    elif ! (mkdir -p /usr/local/bin && : >/usr/local/bin/.drover-write-test) 2>/dev/null; then
        CATTLE_AGENT_BIN_PREFIX=/opt/rancher-system-agent
        if [ -x /usr/sbin/transactional-update ] && (: >/usr/.drover-write-test) 2>/dev/null; then
            CATTLE_AGENT_BIN_PREFIX=/usr
        fi
    fi
    rm -f /usr/local/bin/.drover-write-test /usr/.drover-write-test 2>/dev/null
    return 0
}

setup_env() {
    CATTLE_REMOTE_ENABLED=${CATTLE_REMOTE_ENABLED:-true}
    CATTLE_LOCAL_ENABLED=${CATTLE_LOCAL_ENABLED:-false}
    CATTLE_PRESERVE_WORKDIR=${CATTLE_PRESERVE_WORKDIR:-false}
    CATTLE_AGENT_LOGLEVEL=${CATTLE_AGENT_LOGLEVEL:-info}
    CATTLE_AGENT_CONFIG_DIR=${CATTLE_AGENT_CONFIG_DIR:-/etc/rancher/agent}
    CATTLE_AGENT_VAR_DIR=${CATTLE_AGENT_VAR_DIR:-/var/lib/rancher/agent}
    CATTLE_AGENT_STRICT_VERIFY=${CATTLE_AGENT_STRICT_VERIFY:-${STRICT_VERIFY:-false}}
    CATTLE_AGENT_IMAGES_FROM_SERVER=${CATTLE_AGENT_IMAGES_FROM_SERVER:-false}
    RETRIES=${CATTLE_AGENT_RETRIES:-4500}
    RETRY_PAUSE=${CATTLE_AGENT_RETRY_PAUSE:-5}
    # Five minutes, measured by the pauses and not by the clock, because the clock of a new machine may be set meanwhile.
    MOST_REFUSALS=${CATTLE_AGENT_REFUSALS:-12}
    [ "$MOST_REFUSALS" -lt "$RETRIES" ] || MOST_REFUSALS=$RETRIES
    CATTLE_SERVER=${CATTLE_SERVER%/}
    for value in "$CATTLE_LOCAL_ENABLED" "$CATTLE_REMOTE_ENABLED" "$CATTLE_PRESERVE_WORKDIR"; do
        case "$value" in
        true | false) ;;
        *) fatal "CATTLE_REMOTE_ENABLED, CATTLE_LOCAL_ENABLED and CATTLE_PRESERVE_WORKDIR must be true or false" ;;
        esac
    done
    is_true "$CATTLE_REMOTE_ENABLED" || is_true "$CATTLE_LOCAL_ENABLED" ||
        fatal "CATTLE_REMOTE_ENABLED and CATTLE_LOCAL_ENABLED are both false: set at least one of them to true"
    setup_source
    is_true "$CATTLE_REMOTE_ENABLED" || return 0
    [ -n "$CATTLE_TOKEN" ] || fatal "--token (or CATTLE_TOKEN) is required"
    [ -n "$CATTLE_SERVER" ] || fatal "--server (or CATTLE_SERVER) is required"
    if ! is_true "$CATTLE_ROLE_CONTROLPLANE" && ! is_true "$CATTLE_ROLE_ETCD" &&
        ! is_true "$CATTLE_ROLE_WORKER" && ! is_true "$CATTLE_ROLE_NONE"; then
        fatal "at least one of --controlplane, --etcd, --worker, --all-roles or --no-roles is required"
    fi
    if is_true "$CATTLE_AGENT_STRICT_VERIFY" && [ -z "$CATTLE_CA_CHECKSUM" ]; then
        fatal "strict verification requires --ca-checksum (or CATTLE_CA_CHECKSUM)"
    fi
}

# The source of the binary. An agent for local plans needs no server, but its binary can come from one.
setup_source() {
    CATTLE_AGENT_BINARY_BASE_URL=${CATTLE_AGENT_BINARY_BASE_URL%/}
    if [ -z "$CATTLE_SERVER" ] && ! is_true "$CATTLE_REMOTE_ENABLED"; then
        case "$CATTLE_AGENT_BINARY_BASE_URL" in
        */assets) CATTLE_SERVER=${CATTLE_AGENT_BINARY_BASE_URL%/assets} ;;
        esac
    fi
    if [ -z "$CATTLE_AGENT_BINARY_BASE_URL" ] && [ -n "$CATTLE_SERVER" ]; then
        CATTLE_AGENT_BINARY_BASE_URL=$CATTLE_SERVER/assets
    fi
    is_true "$CATTLE_REMOTE_ENABLED" || is_true "$CATTLE_AGENT_BINARY_LOCAL" || [ -n "$CATTLE_AGENT_BINARY_URL" ] ||
        [ -n "$CATTLE_AGENT_BINARY_BASE_URL" ] ||
        fatal "no source for the agent's binary: set --server, CATTLE_AGENT_BINARY_URL or CATTLE_AGENT_BINARY_LOCAL"
}

# Whether the server is used: its API, or only its copy of the binary.
needs_server() {
    is_true "$CATTLE_REMOTE_ENABLED" && return 0
    is_true "$CATTLE_AGENT_BINARY_LOCAL" && return 1
    case "${CATTLE_AGENT_BINARY_URL:-$CATTLE_AGENT_BINARY_BASE_URL}" in
    "${CATTLE_SERVER:-none}"/*) return 0 ;;
    *) return 1 ;;
    esac
}

sha256_of() {
    if command -v sha256sum >/dev/null 2>&1; then
        sha256sum "$1" | cut -d ' ' -f 1
    elif command -v openssl >/dev/null 2>&1; then
        openssl dgst -sha256 "$1" | sed 's/^.*= *//'
    else
        fatal "sha256sum or openssl is required"
    fi
}

setup_client() {
    if command -v curl >/dev/null 2>&1; then
        CLIENT=curl
    elif command -v wget >/dev/null 2>&1; then
        CLIENT=wget
    else
        fatal "curl or wget is required"
    fi
    TMP=$(mktemp -d) || fatal "failed to create a temporary directory"
    INTERLOCK=
    trap 'rm -rf "$TMP"; [ -z "$INTERLOCK" ] || rm -f "$INTERLOCK"' EXIT
    trap 'exit 1' HUP INT TERM
    CA_FILE=
}

# ipv4 TEXT: the address as a number; fails for anything else.
ipv4() {
    case "$1" in
    "" | *[!0-9.]* | .* | *. | *..*) return 1 ;;
    esac
    count=0 number=0 rest=$1.
    while [ -n "$rest" ]; do
        part=${rest%%.*} rest=${rest#*.}
        # Some shells treat a leading zero as octal.
        case "$part" in 0?* | ????*) return 1 ;; esac
        [ "$part" -le 255 ] || return 1
        number=$((number * 256 + part))
        count=$((count + 1))
    done
    [ "$count" -eq 4 ] && echo "$number"
}

# in_no_proxy URL: whether its address is in a network of NO_PROXY. curl and wget support names and single addresses;
# only newer versions of curl support networks. In a subshell, because it changes word splitting and globbing.
in_no_proxy() (
    host=${1#*://}
    host=${host%%[/?#]*}
    host=${host##*@}
    address=$(ipv4 "${host%%:*}") || exit 1
    set -f
    IFS=", $(printf '\t')"
    for entry in ${no_proxy:-${NO_PROXY:-}}; do
        case "$entry" in
        */[0-9] | */[12][0-9] | */3[0-2]) ;;
        *) continue ;;
        esac
        network=$(ipv4 "${entry%/*}") || continue
        size=$((1 << (32 - ${entry#*/})))
        [ $((address / size)) -ne $((network / size)) ] || exit 0
    done
    exit 1
)

# fetch TRUST URL FILE TIMEOUT [HEADER...]: one attempt. TRUST is ca (the pinned CA, if there is one), system or none.
# The body of an error response is written to the file too.
# Headers are passed in a file, because every user can read the arguments of a process. Empty headers are omitted.
fetch() {
    trust=$1 url=$2 file=$3 timeout=$4
    shift 4
    : >"$TMP/headers"
    if [ "$trust" = ca ] && [ -z "$CA_FILE" ]; then trust=system; fi
    if [ "$CLIENT" = curl ]; then
        for header in "$@"; do
            case "$header" in *": ") continue ;; esac
            printf 'header = "%s"\n' "$(printf '%s' "$header" | sed 's/[\\"]/\\&/g')" >>"$TMP/headers"
        done
        case "$trust" in
        ca) set -- --cacert "$CA_FILE" ;;
        none) set -- --insecure ;;
        *) set -- ;;
        esac
        if in_no_proxy "$url"; then set -- "$@" --noproxy '*'; fi
        : >"$TMP/answer"
        # Not --fail, which drops the body of an error; many versions of curl in use do not support --fail-with-body.
        curl -sSL --connect-timeout 30 --max-time "$timeout" --config "$TMP/headers" "$@" -o "$file" -D "$TMP/answer" \
            -w '%{http_code}' "$url" >"$TMP/code" 2>"$TMP/error" || return
        case "$(cat "$TMP/code")" in
        [45]??)
            echo "curl: (22) The requested URL returned error: $(cat "$TMP/code")" >"$TMP/error"
            return 22
            ;;
        esac
    else
        printf '' >"$TMP/wgetrc"
        for header in "$@"; do
            case "$header" in *": ") continue ;; esac
            printf 'header = %s\n' "$header" >>"$TMP/wgetrc"
        done
        case "$trust" in
        ca) set -- --ca-certificate="$CA_FILE" ;;
        none) set -- --no-check-certificate ;;
        *) set -- ;;
        esac
        if in_no_proxy "$url"; then set -- "$@" --no-proxy; fi
        # wget supports only lowercase names. Not --quiet, which would also hide the reason of a failure. In the language
        # in which the reason is searched for.
        http_proxy=${http_proxy:-${HTTP_PROXY:-}} https_proxy=${https_proxy:-${HTTPS_PROXY:-}} \
            no_proxy=${no_proxy:-${NO_PROXY:-}} WGETRC="$TMP/wgetrc" LC_ALL=C \
            wget -nv -S --tries=1 --content-on-error --timeout="$timeout" "$@" -O "$file" "$url" 2>"$TMP/output"
        set -- $?
        # The lines of the response are indented; the other lines contain the error.
        sed -n 's/^  *//p' "$TMP/output" >"$TMP/answer"
        sed '/^ /d' "$TMP/output" >"$TMP/error"
        return "$1"
    fi
}

# The seconds of Retry-After after too many requests, at most ten minutes; empty otherwise.
asked_to_wait() {
    grep -q -i 'error:\{0,1\} 429' "$TMP/error" 2>/dev/null || return 1
    seconds=$(tr -d '\r' <"$TMP/answer" | sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9]\{1,6\}\)$/\1/p' | tail -n 1)
    [ -n "$seconds" ] || return 1
    [ "$seconds" -le 600 ] || seconds=600
    echo "$seconds"
}

# The reason of the last failure, in one line.
reason() {
    tr -s '\n' ' ' 2>/dev/null <"$TMP/error" | sed 's/ *$//'
}

# retry WHAT COMMAND...: repeats the command until it succeeds.
retry() {
    what=$1
    shift
    try=1
    until "$@"; do
        [ "$try" -lt "$RETRIES" ] || fatal "$what: failed $try times, giving up: $(reason)"
        [ "$try" -gt 1 ] || warn "$what: $(reason); retrying every $RETRY_PAUSE s"
        try=$((try + 1))
        pause=$(asked_to_wait) || pause=$RETRY_PAUSE
        sleep "$pause"
    done
}

# Establishes trust before anything else is downloaded: the CA from /cacerts must have the given checksum, unless the
# system already trusts the server.
verify_ca() {
    [ -n "$CATTLE_CA_CHECKSUM" ] || return 0
    if ! is_true "$CATTLE_AGENT_STRICT_VERIFY" && fetch system "$CATTLE_SERVER/healthz" "$TMP/healthz" 30; then
        info "the server's certificate is trusted by this system; the CA checksum is not needed"
        CATTLE_CA_CHECKSUM=
        return 0
    fi
    retry "downloading the CA of $CATTLE_SERVER" fetch none "$CATTLE_SERVER/cacerts" "$TMP/cacerts" 60
    found=$(sha256_of "$TMP/cacerts")
    if [ "$found" != "$CATTLE_CA_CHECKSUM" ]; then
        fatal "the CA of $CATTLE_SERVER has checksum $found, but $CATTLE_CA_CHECKSUM was given; nothing was installed"
    fi
    CA_FILE=$TMP/cacerts
    info "the CA of $CATTLE_SERVER has the given checksum"
}

check_server() {
    retry "reaching $CATTLE_SERVER" fetch ca "$CATTLE_SERVER/healthz" "$TMP/healthz" 60
}

metadata() {
    url=$1
    shift
    fetch none "$url" "$TMP/metadata" 60 "$@" && cat "$TMP/metadata"
}

# resolve_address WHAT: the address for a keyword or an interface; other values are not changed.
resolve_address() {
    case "$1" in
    awslocal) metadata http://169.254.169.254/latest/meta-data/local-ipv4 ;;
    awspublic) metadata http://169.254.169.254/latest/meta-data/public-ipv4 ;;
    doprivate) metadata http://169.254.169.254/metadata/v1/interfaces/private/0/ipv4/address ;;
    dopublic) metadata http://169.254.169.254/metadata/v1/interfaces/public/0/ipv4/address ;;
    azprivate) metadata "http://169.254.169.254/metadata/instance/network/interface/0/ipv4/ipAddress/0/privateIpAddress?api-version=2017-08-01&format=text" "Metadata: true" ;;
    azpublic) metadata "http://169.254.169.254/metadata/instance/network/interface/0/ipv4/ipAddress/0/publicIpAddress?api-version=2017-08-01&format=text" "Metadata: true" ;;
    gceinternal) metadata http://metadata.google.internal/computeMetadata/v1/instance/network-interfaces/0/ip "Metadata-Flavor: Google" ;;
    gceexternal) metadata http://metadata.google.internal/computeMetadata/v1/instance/network-interfaces/0/access-configs/0/external-ip "Metadata-Flavor: Google" ;;
    packetlocal) metadata https://metadata.packet.net/2009-04-04/meta-data/local-ipv4 ;;
    packetpublic) metadata https://metadata.packet.net/2009-04-04/meta-data/public-ipv4 ;;
    ipify) metadata https://api.ipify.org ;;
    *)
        if command -v ip >/dev/null 2>&1 && ip link show dev "$1" >/dev/null 2>&1; then
            ip -4 -o addr show dev "$1" | sed -n '1s/.*inet \([0-9.]*\).*/\1/p'
        else
            printf '%s' "$1"
        fi
        ;;
    esac
}

resolve_addresses() {
    if [ -n "$CATTLE_ADDRESS" ]; then
        given=$CATTLE_ADDRESS
        CATTLE_ADDRESS=$(resolve_address "$given")
        [ -n "$CATTLE_ADDRESS" ] || fatal "--address $given: no address found"
    fi
    if [ -n "$CATTLE_INTERNAL_ADDRESS" ]; then
        given=$CATTLE_INTERNAL_ADDRESS
        CATTLE_INTERNAL_ADDRESS=$(resolve_address "$given")
        [ -n "$CATTLE_INTERNAL_ADDRESS" ] || fatal "--internal-address $given: no address found"
    fi
}

create_directories() {
    for directory in "$CATTLE_AGENT_CONFIG_DIR" "$CATTLE_AGENT_VAR_DIR" "$CATTLE_AGENT_VAR_DIR/interlock"; do
        mkdir -p "$directory" && chmod 0700 "$directory" || fatal "failed to create $directory"
    done
    mkdir -p "$CATTLE_AGENT_BIN_PREFIX/bin" || fatal "failed to create $CATTLE_AGENT_BIN_PREFIX/bin"
}

# Waits until a running agent has finished its pass, and prevents further ones. Done as late as possible, so that slow
# downloads do not affect the agent.
take_interlock() {
    INTERLOCK=$CATTLE_AGENT_VAR_DIR/interlock/restart-pending
    # With the time: the agent would write it into an empty file, possibly just after the file was removed here, and then
    # wait for five minutes.
    LC_ALL=C date -u '+%a %b %e %H:%M:%S UTC %Y' | private "$INTERLOCK" || exit 1
    waited=0
    while [ -e "$CATTLE_AGENT_VAR_DIR/interlock/applyinator-active" ]; do
        [ "$waited" -gt 0 ] || info "waiting for the running agent to finish its plan"
        if [ "$waited" -ge 300 ]; then
            warn "the running agent did not finish its plan within 5 minutes; continuing"
            break
        fi
        sleep 1
        waited=$((waited + 1))
    done
}

# The base URL serves the original's file name; Drover's is tried first, so that a server can offer both. Done before the
# registration, because a registered machine would remain even if the installation failed.
download_binary() {
    if is_true "$CATTLE_AGENT_BINARY_LOCAL"; then
        [ -n "$CATTLE_AGENT_BINARY_LOCAL_LOCATION" ] || fatal "CATTLE_AGENT_BINARY_LOCAL_LOCATION is required"
        cp "$CATTLE_AGENT_BINARY_LOCAL_LOCATION" "$TMP/agent" || fatal "failed to copy $CATTLE_AGENT_BINARY_LOCAL_LOCATION"
    elif [ -n "$CATTLE_AGENT_BINARY_URL" ]; then
        retry "downloading $CATTLE_AGENT_BINARY_URL" fetch_asset "$CATTLE_AGENT_BINARY_URL" "$TMP/agent"
    else
        retry "downloading the agent from $CATTLE_AGENT_BINARY_BASE_URL" fetch_binary
    fi
    if [ -n "$CATTLE_AGENT_BINARY_CHECKSUM" ]; then
        found=$(sha256_of "$TMP/agent")
        [ "$found" = "$CATTLE_AGENT_BINARY_CHECKSUM" ] ||
            fatal "the agent's binary has checksum $found, but $CATTLE_AGENT_BINARY_CHECKSUM was expected"
    fi
    # A response with status 200 can be any page.
    case "$(od -An -N4 -tx1 "$TMP/agent" | tr -d ' \n')" in
    7f454c46 | 2321*) ;;
    *) fatal "the agent's binary is not a program: it starts with $(head -c 40 "$TMP/agent" | tr -cd ' -~')" ;;
    esac
}

install_binary() {
    BINARY=$CATTLE_AGENT_BIN_PREFIX/bin/rancher-system-agent
    # Copied and then renamed: a running binary cannot be overwritten, and an incomplete one must never be visible.
    cp "$TMP/agent" "$BINARY.tmp" && chmod 0755 "$BINARY.tmp" || fatal "failed to write $BINARY.tmp"
    # Run it before it replaces a working agent. An empty file would be a valid shell script without output.
    if ! "$BINARY.tmp" --version >"$TMP/version" 2>&1 || [ ! -s "$TMP/version" ]; then
        rm -f "$BINARY.tmp"
        fatal "the agent's binary does not run on this machine: $(head -c 400 "$TMP/version")"
    fi
    mv -f "$BINARY.tmp" "$BINARY" || fatal "failed to install $BINARY"
    info "installed $(cat "$TMP/version") as $BINARY"
}

fetch_binary() {
    fetch_asset "$CATTLE_AGENT_BINARY_BASE_URL/drover-agent-$ARCH" "$TMP/agent" ||
        fetch_asset "$CATTLE_AGENT_BINARY_BASE_URL/rancher-system-agent-$ARCH" "$TMP/agent"
}

# fetch_asset URL FILE: the server is trusted only with the pinned CA. Another URL can have a certificate from that CA, or
# from one that this system trusts.
fetch_asset() {
    fetch ca "$1" "$2" 600 && return 0
    case "$1" in
    "${CATTLE_SERVER:-none}"/*) return 1 ;;
    esac
    [ -n "$CA_FILE" ] && fetch system "$1" "$2" 600
}

# The given uninstall script, or else one that calls the agent. Fetched as early as the binary.
download_uninstaller() {
    if is_true "$CATTLE_AGENT_UNINSTALL_LOCAL"; then
        cp "$CATTLE_AGENT_UNINSTALL_LOCAL_LOCATION" "$TMP/uninstall.sh" ||
            fatal "failed to copy CATTLE_AGENT_UNINSTALL_LOCAL_LOCATION ($CATTLE_AGENT_UNINSTALL_LOCAL_LOCATION)"
    elif [ -n "$CATTLE_AGENT_UNINSTALL_URL" ]; then
        retry "downloading $CATTLE_AGENT_UNINSTALL_URL" fetch_asset "$CATTLE_AGENT_UNINSTALL_URL" "$TMP/uninstall.sh"
    else
        own_uninstaller >"$TMP/uninstall.sh" || fatal "failed to write $TMP/uninstall.sh"
    fi
    if [ -n "$CATTLE_AGENT_UNINSTALL_CHECKSUM" ]; then
        found=$(sha256_of "$TMP/uninstall.sh")
        [ "$found" = "$CATTLE_AGENT_UNINSTALL_CHECKSUM" ] ||
            fatal "the uninstall script has checksum $found, but $CATTLE_AGENT_UNINSTALL_CHECKSUM was expected"
    fi
    case "$(head -c 2 "$TMP/uninstall.sh")" in
    '#!') ;;
    *) fatal "the uninstall script is not a script: it starts with $(head -c 40 "$TMP/uninstall.sh" | tr -cd ' -~')" ;;
    esac
}

install_uninstaller() {
    uninstaller=$CATTLE_AGENT_BIN_PREFIX/bin/rancher-system-agent-uninstall.sh
    cp "$TMP/uninstall.sh" "$uninstaller.tmp" && chmod 0755 "$uninstaller.tmp" &&
        mv -f "$uninstaller.tmp" "$uninstaller" || fatal "failed to install $uninstaller"
}

own_uninstaller() {
    cat <<EOF
#!/bin/sh
# Removes the node agent from this machine. Kubernetes stays, unless --purge-distribution is given.
# The agent removes itself and this script; after --help or an invalid argument, both are kept.
CATTLE_AGENT_SYSTEMD_DIR='$SYSTEMD_DIR' CATTLE_AGENT_CONFIG='$CATTLE_AGENT_CONFIG_DIR/config.yaml' \\
    '$CATTLE_AGENT_BIN_PREFIX/bin/rancher-system-agent' uninstall "\$@"
EOF
}

# private FILE: writes standard input to a file that only root can read from the start. At the end of a pipeline it is a
# separate process, whose failure must end this one as well: || exit 1.
private() {
    (umask 077 && cat >"$1.tmp") && mv -f "$1.tmp" "$1" || fatal "failed to write $1"
}

# The agent validates the new configuration before it replaces a working one.
write_config() {
    config=$CATTLE_AGENT_CONFIG_DIR/config.yaml
    {
        echo "workDirectory: $CATTLE_AGENT_VAR_DIR/work"
        echo "appliedPlanDirectory: $CATTLE_AGENT_VAR_DIR/applied"
        echo "localPlanDirectory: $CATTLE_AGENT_VAR_DIR/plans"
        echo "interlockDirectory: $CATTLE_AGENT_VAR_DIR/interlock"
        echo "imagesDirectory: $CATTLE_AGENT_VAR_DIR/images"
        echo "remoteEnabled: $CATTLE_REMOTE_ENABLED"
        echo "localEnabled: $CATTLE_LOCAL_ENABLED"
        echo "preserveWorkDirectory: $CATTLE_PRESERVE_WORKDIR"
        if is_true "$CATTLE_REMOTE_ENABLED"; then
            echo "connectionInfoFile: $CATTLE_AGENT_VAR_DIR/rancher2_connection_info.json"
            echo "imagesFromServer: $(role "$CATTLE_AGENT_IMAGES_FROM_SERVER")"
        fi
    } | private "$config.new" || exit 1
    if ! "$BINARY" validate-config "$config.new" >/dev/null; then
        rm -f "$config.new"
        fatal "the agent rejected its configuration"
    fi
    mv -f "$config.new" "$config" || fatal "failed to write $config"
}

# durable PATH...: syncs the file systems of the paths. Others are not synced if this machine's sync supports that,
# because a network file system that does not respond would block forever.
durable() {
    sync -f "$@" 2>/dev/null || sync
}

# The machine's identity: generated once and kept, so that a second run registers the same machine. It is written to disk
# before the registration, so that an interrupted run does not leave a registered machine without an owner.
machine_id() {
    id_file=$CATTLE_AGENT_CONFIG_DIR/cattle-id
    NEW_ID=
    if [ -n "$CATTLE_ID" ]; then
        :
    elif [ -s "$id_file" ]; then
        CATTLE_ID=$(cat "$id_file")
    else
        CATTLE_ID=$(dd if=/dev/urandom bs=64 count=1 2>/dev/null | od -An -v -tx1 | tr -d ' \n' | cut -c 1-63)
        [ ${#CATTLE_ID} -eq 63 ] || fatal "failed to generate a machine id"
    fi
    [ -e "$id_file" ] || NEW_ID=$id_file
    mkdir -p "$CATTLE_AGENT_CONFIG_DIR" && chmod 0700 "$CATTLE_AGENT_CONFIG_DIR" ||
        fatal "failed to create $CATTLE_AGENT_CONFIG_DIR"
    printf '%s\n' "$CATTLE_ID" | private "$id_file" || exit 1
    durable "$id_file"
}

# The credential of an earlier run from the same server: it proves that this machine is the registered one. It is sent to
# no other server.
machine_token() (
    connection=$CATTLE_AGENT_VAR_DIR/rancher2_connection_info.json
    [ -s "$connection" ] || exit 0
    set -f
    # Split into words, which works for JSON and YAML: an address follows "server", and the token follows "token".
    before='' server='' token=''
    for word in $(tr -cs 'A-Za-z0-9._:/[]-' ' ' <"$connection" | sed 's/: / /g'); do
        case "$before" in
        server) server=$word ;;
        token) token=$word ;;
        esac
        before=${word%:}
    done
    [ "${server%/}" = "$CATTLE_SERVER" ] || exit 0
    printf '%s' "$token"
)

role() { if is_true "$1"; then echo true; else echo false; fi; }

fetch_connection() {
    # The server may need some time to create the machine's objects.
    status=0
    # A response without a body may leave the file unchanged, with the content of an earlier attempt.
    : >"$TMP/connection.json"
    fetch ca "$CATTLE_SERVER/v3/connect/agent" "$TMP/connection.json" 60 \
        "Authorization: Bearer $CATTLE_TOKEN" \
        "X-Cattle-Id: $CATTLE_ID" \
        "X-Cattle-Machine-Token: $(machine_token)" \
        "X-Cattle-Role-Etcd: $(role "$CATTLE_ROLE_ETCD")" \
        "X-Cattle-Role-Control-Plane: $(role "$CATTLE_ROLE_CONTROLPLANE")" \
        "X-Cattle-Role-Worker: $(role "$CATTLE_ROLE_WORKER")" \
        "X-Cattle-Node-Name: $CATTLE_NODE_NAME" \
        "X-Cattle-Address: $CATTLE_ADDRESS" \
        "X-Cattle-Internal-Address: $CATTLE_INTERNAL_ADDRESS" \
        "X-Cattle-Labels: $CATTLE_LABELS" \
        "X-Cattle-Taints: $CATTLE_TAINTS" || status=$?
    if [ "$status" -eq 0 ]; then
        chmod 0600 "$TMP/connection.json"
        return 0
    fi
    # A retry would send the same values.
    ! is_bad_request || give_up "$(sentence)"
    # A server that has just started may not have loaded all tokens yet, so retry a few times.
    if is_refusal "$status"; then
        REFUSALS=$((REFUSALS + 1))
        [ "$REFUSALS" -lt "$MOST_REFUSALS" ] || give_up "the token (--token): it is wrong or has expired"
        [ "$REFUSALS" -gt 1 ] || warn "the token was rejected: it is wrong or has expired, or the server has just started and has not loaded it yet"
    else
        REFUSALS=0
    fi
    return 1
}

# is_refusal STATUS: whether the last response was 401, which is exit code 6 of wget.
is_refusal() {
    if [ "$CLIENT" = curl ]; then
        grep -q 'error: 401' "$TMP/error"
    else
        [ "$1" -eq 6 ]
    fi
}

# Whether the last response was 400, 403 or 409: its body states which value is invalid, not permitted by the token, or
# already registered.
is_bad_request() {
    grep -q -i 'error:\{0,1\} 40[039]' "$TMP/error"
}

# The message of the server in one line, without control characters.
sentence() {
    said=$(head -c 2000 "$TMP/connection.json" | tr -s '\n\r\t' '   ' | LC_ALL=C tr -d '\000-\037\177' | sed 's/ *$//')
    printf 'the given values: %s' "${said:-no reason given}"
}

# give_up WHAT: the server rejected it.
give_up() {
    if [ -n "$NEW_ID" ]; then
        rm -f "$NEW_ID"
        rmdir -p "$CATTLE_AGENT_CONFIG_DIR" 2>/dev/null || :
    fi
    fatal "$CATTLE_SERVER rejected $1$UNTOUCHED"
}

# Done before anything is installed, so that an invalid token or value leaves no files.
connect() {
    is_true "$CATTLE_REMOTE_ENABLED" || return 0
    REFUSALS=0
    UNTOUCHED="; nothing was installed"
    (umask 077 && : >"$TMP/connection.json")
    retry "registering with $CATTLE_SERVER" fetch_connection
    info "registered with $CATTLE_SERVER"
    # From now on the server knows the machine's identity, so it is kept even if a later step fails.
    REFUSALS=0 NEW_ID='' UNTOUCHED=''
}

validate_connection() {
    "$BINARY" validate-connection "$TMP/connection.json" >/dev/null 2>"$TMP/error"
}

fetch_valid_connection() { fetch_connection && validate_connection; }

# The agent validates the response of the server.
write_connection() {
    is_true "$CATTLE_REMOTE_ENABLED" || return 0
    validate_connection || retry "registering with $CATTLE_SERVER" fetch_valid_connection
    private "$CATTLE_AGENT_VAR_DIR/rancher2_connection_info.json" <"$TMP/connection.json"
}

write_unit() {
    mkdir -p "$SYSTEMD_DIR" || fatal "failed to create $SYSTEMD_DIR"
    cat >"$SYSTEMD_DIR/$UNIT.service.tmp" <<EOF
[Unit]
Description=Drover node agent
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Install]
WantedBy=multi-user.target

[Service]
EnvironmentFile=-/etc/default/$UNIT
EnvironmentFile=-/etc/sysconfig/$UNIT
EnvironmentFile=-$SYSTEMD_DIR/$UNIT.env
Type=simple
Restart=always
RestartSec=5s
# Only the agent gets SIGTERM: it ends its instruction itself and resumes the plan later; an instruction that got the
# signal as well would appear to have failed. Processes of a killed agent are killed before the next one starts, so that
# a plan never runs twice in parallel. Daemons that must keep running need units of their own.
KillMode=mixed
TimeoutStopSec=30s
# When memory is short, other processes are killed first. Instructions do not inherit this score, and one that is killed
# fails without affecting the agent.
OOMScoreAdjust=-500
OOMPolicy=continue
# Instructions share these limits with the agent, and install whole distributions: none of the limits may be lower than
# the default for services. A tunnel needs a file descriptor per connection.
TasksMax=infinity
LimitNPROC=infinity
LimitNOFILE=65536:524288
# A core dump would contain credentials; an instruction that needs one can raise the limit.
LimitCORE=0:infinity
# The agent sets the modes of its own files; files that instructions install must be readable by everyone.
UMask=0022
# No sandbox (ProtectSystem, PrivateTmp, PrivateDevices, ProtectKernelTunables, ProtectClock, NoNewPrivileges, system call
# filters): it would apply to instructions too, which write to /usr and /etc, load modules, set sysctls, mount file
# systems, set up time servers and install privileged programs.
Environment=CATTLE_LOGLEVEL=$CATTLE_AGENT_LOGLEVEL
Environment=CATTLE_AGENT_CONFIG=$CATTLE_AGENT_CONFIG_DIR/config.yaml
Environment=CATTLE_AGENT_STRICT_VERIFY=$(role "$CATTLE_AGENT_STRICT_VERIFY")
ExecStart=$CATTLE_AGENT_BIN_PREFIX/bin/rancher-system-agent sentinel
EOF
    chmod 0644 "$SYSTEMD_DIR/$UNIT.service.tmp" && mv -f "$SYSTEMD_DIR/$UNIT.service.tmp" "$SYSTEMD_DIR/$UNIT.service" ||
        fatal "failed to write $SYSTEMD_DIR/$UNIT.service"
    {
        for name in HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy; do
            eval "value=\${$name:-}"
            # shellcheck disable=SC2154 # set by eval
            # echo and systemd interpret a backslash (DOMAIN\\user).
            # shellcheck disable=SC1003 # no quote is escaped
            [ -z "$value" ] || printf '%s=%s\n' "$name" "$value" | sed 's/\\/\\\\/g'
        done
        # Programs that instructions install are next to the agent when /usr/local cannot be used.
        if [ "$CATTLE_AGENT_BIN_PREFIX" != /usr/local ]; then
            echo "PATH=$PATH:$CATTLE_AGENT_BIN_PREFIX/bin"
        fi
    } | private "$SYSTEMD_DIR/$UNIT.env" || exit 1
}

start_agent() {
    systemctl daemon-reload || fatal "systemctl daemon-reload failed"
    systemctl enable $UNIT.service || fatal "systemctl enable $UNIT failed"
    systemctl restart $UNIT.service || fatal "systemctl restart $UNIT failed"
    rm -f "$INTERLOCK"
    info "started $UNIT.service"
}

main() {
    parse_args "$@"
    [ "$(id -u)" -eq 0 ] || fatal "this must be run as root: log in as root, or install sudo, and run the command again"
    setup_arch
    setup_env
    setup_client
    if needs_server; then
        verify_ca
        check_server
    fi
    setup_prefix
    resolve_addresses
    download_binary
    download_uninstaller
    machine_id
    connect
    create_directories
    install_binary
    install_uninstaller
    write_config
    write_connection
    take_interlock
    write_unit
    # The installed files must survive a power failure.
    durable "$BINARY" "$CATTLE_AGENT_CONFIG_DIR" "$CATTLE_AGENT_VAR_DIR" "$SYSTEMD_DIR"
    start_agent
}

main "$@"
