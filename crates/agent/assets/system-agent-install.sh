#!/bin/sh
# Installs the node agent of Drover and connects it to the management plane.
#
#   curl -fL https://SERVER/system-agent-install.sh | sudo sh -s - --server https://SERVER --token TOKEN \
#       --ca-checksum SUM --worker
#
# Whoever is root already needs no sudo.
#
# It takes the arguments and environment variables of Rancher's system-agent installer, uses its paths, and installs the
# agent under its name, so that either can replace the other. Needs a POSIX shell and curl or wget.
#
# Arguments (each also by the variable in brackets):
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
#   CATTLE_AGENT_REFUSALS=12                how often in a row the server may refuse the token before it is taken for wrong
#   CATTLE_AGENT_SYSTEMD_DIR=/etc/systemd/system,
#   CATTLE_AGENT_IMAGES_FROM_SERVER=false   ask the server for installer images too, before the registry of their name;
#                                           the script that Drover serves says true

# Everything is in functions and called by the last line: half a script that arrived through a pipe does nothing.

UNIT=rancher-system-agent
SYSTEMD_DIR=${CATTLE_AGENT_SYSTEMD_DIR:-/etc/systemd/system}

info() { echo "[INFO]  $*"; }
warn() { echo "[WARN]  $*" >&2; }
fatal() {
    echo "[FATAL] $*" >&2
    exit 1
}

need_value() {
    [ $# -ge 2 ] && [ -n "$2" ] || fatal "argument $1 needs a value"
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

# The prefix must be writable and no mount of its own: an agent on it would be gone when the mount is.
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
    # Five minutes, with the pauses between. Not by the clock: that of a new machine may be set meanwhile.
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
        fatal "CATTLE_REMOTE_ENABLED and CATTLE_LOCAL_ENABLED are both false: the agent would have nothing to do"
    setup_source
    is_true "$CATTLE_REMOTE_ENABLED" || return 0
    [ -n "$CATTLE_TOKEN" ] || fatal "--token (or CATTLE_TOKEN) is required"
    [ -n "$CATTLE_SERVER" ] || fatal "--server (or CATTLE_SERVER) is required"
    if ! is_true "$CATTLE_ROLE_CONTROLPLANE" && ! is_true "$CATTLE_ROLE_ETCD" &&
        ! is_true "$CATTLE_ROLE_WORKER" && ! is_true "$CATTLE_ROLE_NONE"; then
        fatal "at least one of --controlplane, --etcd, --worker, --all-roles or --no-roles is required"
    fi
    if is_true "$CATTLE_AGENT_STRICT_VERIFY" && [ -z "$CATTLE_CA_CHECKSUM" ]; then
        fatal "strict verification needs --ca-checksum (or CATTLE_CA_CHECKSUM)"
    fi
}

# Where the binary comes from. An agent for local plans alone needs no server, but may well have its binary from one.
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
        fatal "there is nowhere to have the agent from: give --server, CATTLE_AGENT_BINARY_URL or CATTLE_AGENT_BINARY_LOCAL"
}

# Whether anything is asked of the server: its API, or the binary alone.
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
    TMP=$(mktemp -d) || fatal "cannot create a temporary directory"
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
        # A leading zero would make it octal, for some.
        case "$part" in 0?* | ????*) return 1 ;; esac
        [ "$part" -le 255 ] || return 1
        number=$((number * 256 + part))
        count=$((count + 1))
    done
    [ "$count" -eq 4 ] && echo "$number"
}

# in_no_proxy URL: whether its address is in a network of NO_PROXY. Names and single addresses are understood by curl and
# wget themselves; networks only by newer versions of curl. In a subshell, since it splits at commas and expands nothing.
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

# fetch TRUST URL FILE TIMEOUT [HEADER...]: one try. TRUST is ca (the pinned authority, if there is one), system or none.
# An answer that is an error is in the file, too.
# The headers go through a file: arguments of a process can be read by everybody. Those without a value are left out.
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
        # Not --fail, which would lose what the server says; --fail-with-body is unknown to many that are in use.
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
        # wget knows the names in small letters alone. Not --quiet: that would keep the reason of a failure back, too. In the
        # language in which the reason is looked for.
        http_proxy=${http_proxy:-${HTTP_PROXY:-}} https_proxy=${https_proxy:-${HTTPS_PROXY:-}} \
            no_proxy=${no_proxy:-${NO_PROXY:-}} WGETRC="$TMP/wgetrc" LC_ALL=C \
            wget -nv -S --tries=1 --content-on-error --timeout="$timeout" "$@" -O "$file" "$url" 2>"$TMP/output"
        set -- $?
        # The lines of the answer are indented; the rest says what went wrong.
        sed -n 's/^  *//p' "$TMP/output" >"$TMP/answer"
        sed '/^ /d' "$TMP/output" >"$TMP/error"
        return "$1"
    fi
}

# How many seconds the server wants to be left alone, if it was asked too often; else none. Not longer than ten minutes.
asked_to_wait() {
    grep -q -i 'error:\{0,1\} 429' "$TMP/error" 2>/dev/null || return 1
    seconds=$(tr -d '\r' <"$TMP/answer" | sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9]\{1,6\}\)$/\1/p' | tail -n 1)
    [ -n "$seconds" ] || return 1
    [ "$seconds" -le 600 ] || seconds=600
    echo "$seconds"
}

# Why the last fetch failed, in one line.
reason() {
    tr -s '\n' ' ' 2>/dev/null <"$TMP/error" | sed 's/ *$//'
}

# retry WHAT COMMAND...: until it works.
retry() {
    what=$1
    shift
    try=1
    until "$@"; do
        [ "$try" -lt "$RETRIES" ] || fatal "$what: failed $try times, giving up: $(reason)"
        [ "$try" -gt 1 ] || warn "$what: $(reason); trying again every $RETRY_PAUSE s"
        try=$((try + 1))
        pause=$(asked_to_wait) || pause=$RETRY_PAUSE
        sleep "$pause"
    done
}

# Trust is settled before anything else is downloaded: what cacerts serves must have the checksum that the person who
# runs this was given, unless the system trusts the server anyway.
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

# resolve_address WHAT: an address for a keyword or an interface; anything else stays as it is.
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
        [ -n "$CATTLE_ADDRESS" ] || fatal "--address $given: no such address was found"
    fi
    if [ -n "$CATTLE_INTERNAL_ADDRESS" ]; then
        given=$CATTLE_INTERNAL_ADDRESS
        CATTLE_INTERNAL_ADDRESS=$(resolve_address "$given")
        [ -n "$CATTLE_INTERNAL_ADDRESS" ] || fatal "--internal-address $given: no such address was found"
    fi
}

create_directories() {
    for directory in "$CATTLE_AGENT_CONFIG_DIR" "$CATTLE_AGENT_VAR_DIR" "$CATTLE_AGENT_VAR_DIR/interlock"; do
        mkdir -p "$directory" && chmod 0700 "$directory" || fatal "cannot create $directory"
    done
    mkdir -p "$CATTLE_AGENT_BIN_PREFIX/bin" || fatal "cannot create $CATTLE_AGENT_BIN_PREFIX/bin"
}

# An agent that runs finishes its pass first, and starts no other. Only now: until here nothing disturbs it, however long
# a download takes.
take_interlock() {
    INTERLOCK=$CATTLE_AGENT_VAR_DIR/interlock/restart-pending
    # With its time. The agent would write that into an empty file, perhaps just after it was removed here, and then wait
    # for five minutes for nobody.
    LC_ALL=C date -u '+%a %b %e %H:%M:%S UTC %Y' | private "$INTERLOCK" || exit 1
    waited=0
    while [ -e "$CATTLE_AGENT_VAR_DIR/interlock/applyinator-active" ]; do
        [ "$waited" -gt 0 ] || info "waiting for the running agent to finish its plan"
        if [ "$waited" -ge 300 ]; then
            warn "the running agent did not finish its plan in 5 minutes; going on"
            break
        fi
        sleep 1
        waited=$((waited + 1))
    done
}

# The base URL serves the original's file name; ours is asked for first, so that a server may offer both. Before the
# server hears of this machine: what it was told then would stand, though nothing could be installed.
download_binary() {
    if is_true "$CATTLE_AGENT_BINARY_LOCAL"; then
        [ -n "$CATTLE_AGENT_BINARY_LOCAL_LOCATION" ] || fatal "CATTLE_AGENT_BINARY_LOCAL_LOCATION is required"
        cp "$CATTLE_AGENT_BINARY_LOCAL_LOCATION" "$TMP/agent" || fatal "cannot copy $CATTLE_AGENT_BINARY_LOCAL_LOCATION"
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
    # An answer of 200 may be anybody's page.
    case "$(od -An -N4 -tx1 "$TMP/agent" | tr -d ' \n')" in
    7f454c46 | 2321*) ;;
    *) fatal "the agent's binary is not a program: it begins with $(head -c 40 "$TMP/agent" | tr -cd ' -~')" ;;
    esac
}

install_binary() {
    BINARY=$CATTLE_AGENT_BIN_PREFIX/bin/rancher-system-agent
    # Beside its place, then renamed: a running binary cannot be written to, and a reader must never see half of it.
    cp "$TMP/agent" "$BINARY.tmp" && chmod 0755 "$BINARY.tmp" || fatal "cannot write $BINARY.tmp"
    # Before it takes the place of an agent that works. A file with nothing to do is a program to a shell, and says nothing.
    if ! "$BINARY.tmp" --version >"$TMP/version" 2>&1 || [ ! -s "$TMP/version" ]; then
        rm -f "$BINARY.tmp"
        fatal "the agent's binary does not run on this machine: $(head -c 400 "$TMP/version")"
    fi
    mv -f "$BINARY.tmp" "$BINARY" || fatal "cannot install $BINARY"
    info "installed $(cat "$TMP/version") as $BINARY"
}

fetch_binary() {
    fetch_asset "$CATTLE_AGENT_BINARY_BASE_URL/drover-agent-$ARCH" "$TMP/agent" ||
        fetch_asset "$CATTLE_AGENT_BINARY_BASE_URL/rancher-system-agent-$ARCH" "$TMP/agent"
}

# fetch_asset URL FILE: the server is trusted by the pinned authority alone. Another place may have its certificate from
# that authority too, or from one that this system trusts.
fetch_asset() {
    fetch ca "$1" "$2" 600 && return 0
    case "$1" in
    "${CATTLE_SERVER:-none}"/*) return 1 ;;
    esac
    [ -n "$CA_FILE" ] && fetch system "$1" "$2" 600
}

# The uninstall script that was asked for, else one that asks the agent itself. As early as the binary.
download_uninstaller() {
    if is_true "$CATTLE_AGENT_UNINSTALL_LOCAL"; then
        cp "$CATTLE_AGENT_UNINSTALL_LOCAL_LOCATION" "$TMP/uninstall.sh" ||
            fatal "cannot copy CATTLE_AGENT_UNINSTALL_LOCAL_LOCATION ($CATTLE_AGENT_UNINSTALL_LOCAL_LOCATION)"
    elif [ -n "$CATTLE_AGENT_UNINSTALL_URL" ]; then
        retry "downloading $CATTLE_AGENT_UNINSTALL_URL" fetch_asset "$CATTLE_AGENT_UNINSTALL_URL" "$TMP/uninstall.sh"
    else
        own_uninstaller >"$TMP/uninstall.sh" || fatal "cannot write $TMP/uninstall.sh"
    fi
    if [ -n "$CATTLE_AGENT_UNINSTALL_CHECKSUM" ]; then
        found=$(sha256_of "$TMP/uninstall.sh")
        [ "$found" = "$CATTLE_AGENT_UNINSTALL_CHECKSUM" ] ||
            fatal "the uninstall script has checksum $found, but $CATTLE_AGENT_UNINSTALL_CHECKSUM was expected"
    fi
    case "$(head -c 2 "$TMP/uninstall.sh")" in
    '#!') ;;
    *) fatal "the uninstall script is no script: it begins with $(head -c 40 "$TMP/uninstall.sh" | tr -cd ' -~')" ;;
    esac
}

install_uninstaller() {
    uninstaller=$CATTLE_AGENT_BIN_PREFIX/bin/rancher-system-agent-uninstall.sh
    cp "$TMP/uninstall.sh" "$uninstaller.tmp" && chmod 0755 "$uninstaller.tmp" &&
        mv -f "$uninstaller.tmp" "$uninstaller" || fatal "cannot install $uninstaller"
}

own_uninstaller() {
    cat <<EOF
#!/bin/sh
# Removes the node agent from this machine. Kubernetes stays, unless --purge-distribution is given.
# The agent removes itself and this script; after --help, or a mistyped argument, both are still there.
CATTLE_AGENT_SYSTEMD_DIR='$SYSTEMD_DIR' CATTLE_AGENT_CONFIG='$CATTLE_AGENT_CONFIG_DIR/config.yaml' \\
    '$CATTLE_AGENT_BIN_PREFIX/bin/rancher-system-agent' uninstall "\$@"
EOF
}

# private FILE: standard input becomes the file, readable by root alone from its first byte on. At the end of a pipeline it
# is a process of its own, and its failure must end this one as well: || exit 1.
private() {
    (umask 077 && cat >"$1.tmp") && mv -f "$1.tmp" "$1" || fatal "cannot write $1"
}

# The agent itself says whether it understands it, before it takes the place of one that works.
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
        fatal "the agent refuses its configuration"
    fi
    mv -f "$config.new" "$config" || fatal "cannot write $config"
}

# durable PATH...: with all that their file systems hold. Not with others, where the sync of this machine can do that: one
# that does not answer any more would hold us for ever.
durable() {
    sync -f "$@" 2>/dev/null || sync
}

# The machine's identity: made once and kept, so that a second run is the same machine. It is on disk before the server
# hears of it: a run that is cut off must not leave a machine there that nobody will ever be.
machine_id() {
    id_file=$CATTLE_AGENT_CONFIG_DIR/cattle-id
    NEW_ID=
    if [ -n "$CATTLE_ID" ]; then
        :
    elif [ -s "$id_file" ]; then
        CATTLE_ID=$(cat "$id_file")
    else
        CATTLE_ID=$(dd if=/dev/urandom bs=64 count=1 2>/dev/null | od -An -v -tx1 | tr -d ' \n' | cut -c 1-63)
        [ ${#CATTLE_ID} -eq 63 ] || fatal "cannot make a machine id"
    fi
    [ -e "$id_file" ] || NEW_ID=$id_file
    mkdir -p "$CATTLE_AGENT_CONFIG_DIR" && chmod 0700 "$CATTLE_AGENT_CONFIG_DIR" ||
        fatal "cannot create $CATTLE_AGENT_CONFIG_DIR"
    printf '%s\n' "$CATTLE_ID" | private "$id_file" || exit 1
    durable "$id_file"
}

# The credential that an earlier run got from the same server: it proves that this machine is the one that is registered.
# It is shown to no other server.
machine_token() (
    connection=$CATTLE_AGENT_VAR_DIR/rancher2_connection_info.json
    [ -s "$connection" ] || exit 0
    set -f
    # Words of it, whether the kubeconfig in it is JSON or YAML: after "server" comes an address, after "token" the token.
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
    # The server may keep us waiting while it makes the machine's objects.
    status=0
    # An answer without a body may leave the file as it was, and that of an earlier try is not what it says.
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
    # What was given stays what it is, so that asking again would be of no use.
    ! is_bad_request || give_up "$(sentence)"
    # A server that has just started may not know all its tokens yet, so once is not enough.
    if is_refusal "$status"; then
        REFUSALS=$((REFUSALS + 1))
        [ "$REFUSALS" -lt "$MOST_REFUSALS" ] || give_up "the token (--token): it is wrong or has expired"
        [ "$REFUSALS" -gt 1 ] || warn "the token is refused: it is wrong, or the server has just started and does not know it yet"
    else
        REFUSALS=0
    fi
    return 1
}

# is_refusal STATUS: whether the last fetch was answered with 401. That is exit code 6 of wget.
is_refusal() {
    if [ "$CLIENT" = curl ]; then
        grep -q 'error: 401' "$TMP/error"
    else
        [ "$1" -eq 6 ]
    fi
}

# Whether the last fetch was answered with 400, 403 or 409: the server says what is wrong with the values it was given, what
# the token does not allow, or what it has registered already.
is_bad_request() {
    grep -q -i 'error:\{0,1\} 40[039]' "$TMP/error"
}

# What the server said, in one line, without anything that a terminal would obey.
sentence() {
    said=$(head -c 2000 "$TMP/connection.json" | tr -s '\n\r\t' '   ' | LC_ALL=C tr -d '\000-\037\177' | sed 's/ *$//')
    printf 'what it was given: %s' "${said:-it does not say why}"
}

# give_up WHAT: the server refuses it.
give_up() {
    if [ -n "$NEW_ID" ]; then
        rm -f "$NEW_ID"
        rmdir -p "$CATTLE_AGENT_CONFIG_DIR" 2>/dev/null || :
    fi
    fatal "$CATTLE_SERVER refuses $1$UNTOUCHED"
}

# Before anything is installed, so that a wrong token or a wrong value leaves no trace.
connect() {
    is_true "$CATTLE_REMOTE_ENABLED" || return 0
    REFUSALS=0
    UNTOUCHED="; nothing was installed"
    (umask 077 && : >"$TMP/connection.json")
    retry "registering with $CATTLE_SERVER" fetch_connection
    info "registered with $CATTLE_SERVER"
    # From now on the server knows the machine by its identity, whatever it refuses later.
    REFUSALS=0 NEW_ID='' UNTOUCHED=''
}

validate_connection() {
    "$BINARY" validate-connection "$TMP/connection.json" >/dev/null 2>"$TMP/error"
}

fetch_valid_connection() { fetch_connection && validate_connection; }

# The agent itself says whether it understands what the server answered.
write_connection() {
    is_true "$CATTLE_REMOTE_ENABLED" || return 0
    validate_connection || retry "registering with $CATTLE_SERVER" fetch_valid_connection
    private "$CATTLE_AGENT_VAR_DIR/rancher2_connection_info.json" <"$TMP/connection.json"
}

write_unit() {
    mkdir -p "$SYSTEMD_DIR" || fatal "cannot create $SYSTEMD_DIR"
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
# Only the agent is asked to stop: it ends its instruction itself and takes the plan up again later; an instruction that
# got the signal as well would look as if it had failed. Whatever a killed agent left behind is ended before the next
# starts, so that a plan never runs twice at once. Daemons that shall stay belong into units of their own.
KillMode=mixed
TimeoutStopSec=30s
# When memory is short, others go first. Instructions do not inherit this, and one that is killed for want of memory
# fails alone.
OOMScoreAdjust=-500
OOMPolicy=continue
# Instructions share these limits with the agent, and unpack, compile and install whole distributions: none of them may
# be lower than what the system gives to services. A tunnel needs a file per connection.
TasksMax=infinity
LimitNPROC=infinity
LimitNOFILE=65536:524288
# A dump would hold credentials; an instruction that wants one may raise it.
LimitCORE=0:infinity
# The files of the agent have their modes anyway; what an instruction installs must be usable by everybody.
UMask=0022
# No sandbox (ProtectSystem, PrivateTmp, PrivateDevices, ProtectKernelTunables, ProtectClock, NoNewPrivileges, system call
# filters): instructions would be in it too, and they write to /usr and /etc, load modules, set sysctls, mount, set up
# time servers and install programs with privileges of their own.
Environment=CATTLE_LOGLEVEL=$CATTLE_AGENT_LOGLEVEL
Environment=CATTLE_AGENT_CONFIG=$CATTLE_AGENT_CONFIG_DIR/config.yaml
Environment=CATTLE_AGENT_STRICT_VERIFY=$(role "$CATTLE_AGENT_STRICT_VERIFY")
ExecStart=$CATTLE_AGENT_BIN_PREFIX/bin/rancher-system-agent sentinel
EOF
    chmod 0644 "$SYSTEMD_DIR/$UNIT.service.tmp" && mv -f "$SYSTEMD_DIR/$UNIT.service.tmp" "$SYSTEMD_DIR/$UNIT.service" ||
        fatal "cannot write $SYSTEMD_DIR/$UNIT.service"
    {
        for name in HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy; do
            eval "value=\${$name:-}"
            # shellcheck disable=SC2154 # set by eval
            # A backslash (DOMAIN\\user) is for echo to interpret, and for systemd.
            # shellcheck disable=SC1003 # no quote is escaped
            [ -z "$value" ] || printf '%s=%s\n' "$name" "$value" | sed 's/\\/\\\\/g'
        done
        # Programs that instructions install go beside the agent when /usr/local cannot be used.
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
    # What is started is there after a power cut, too.
    durable "$BINARY" "$CATTLE_AGENT_CONFIG_DIR" "$CATTLE_AGENT_VAR_DIR" "$SYSTEMD_DIR"
    start_agent
}

main "$@"
