#!/bin/sh
# Installs the simulated K3s and restarts it when, and only when, its restart stamp has changed.
# The contract is that of the system-agent installer images: artifacts lie in $CATTLE_AGENT_EXECUTION_PWD.
set -eu

version='@VERSION@'
source=${CATTLE_AGENT_EXECUTION_PWD:-$(cd "$(dirname "$0")" && pwd)}
data=${K3S_DATA_DIR:-/var/lib/rancher/k3s}
lib=/usr/local/lib/k3s
bin=/usr/local/bin
units=/etc/systemd/system

if [ "${INSTALL_K3S_EXEC:-server}" = agent ]; then
    role=agent unit=k3s-agent other=k3s
else
    role=server unit=k3s other=k3s-agent
fi

# Files are put in place by rename, so that a kill in between leaves the old or the new one.
put() { # mode, path; content on standard input
    mkdir -p "$(dirname "$2")"
    cat > "$2.new"
    chmod "$1" "$2.new"
    mv -f "$2.new" "$2"
}

if [ "$(cat "$lib/version" 2>/dev/null || true)" != "$version" ] || [ ! -x "$lib/k3s" ]; then
    put 0755 "$lib/k3s" < "$source/k3s"
fi
put 0755 "$bin/k3s" <<WRAPPER
#!/bin/sh
exec $lib/k3s sim k3s --release '$version' -- "\$@"
WRAPPER
put 0755 "$bin/k3s-killall.sh" <<'KILLALL'
#!/bin/sh
for unit in k3s k3s-agent; do systemctl stop "$unit" 2>/dev/null || true; done
KILLALL
put 0755 "$bin/k3s-uninstall.sh" <<UNINSTALL
#!/bin/sh
$bin/k3s-killall.sh
systemctl disable k3s k3s-agent 2>/dev/null || true
rm -rf $units/k3s.service $units/k3s-agent.service $units/k3s.service.env $units/k3s-agent.service.env
rm -rf '$data' $lib /etc/rancher/k3s $bin/k3s $bin/k3s-killall.sh
systemctl daemon-reload
rm -f $bin/k3s-uninstall.sh
UNINSTALL
put 0644 "$lib/version" <<VERSION
$version
VERSION

env | grep -E '^(K3S_|HTTP_PROXY=|HTTPS_PROXY=|NO_PROXY=|http_proxy=|https_proxy=|no_proxy=)' | sort | put 0600 "$units/$unit.service.env" || true
put 0644 "$units/$unit.service" <<UNIT
[Unit]
Description=Lightweight Kubernetes (simulated)
Wants=network-online.target
After=network-online.target

[Install]
WantedBy=multi-user.target

[Service]
Type=simple
EnvironmentFile=-$units/$unit.service.env
KillMode=process
Restart=always
RestartSec=2s
ExecStart=$bin/k3s $role
UNIT
systemctl daemon-reload

if [ -e "$units/$other.service" ]; then
    systemctl disable "$other" || true
    systemctl stop "$other" || true
    rm -f "$units/$other.service" "$units/$other.service.env"
fi
if [ "${INSTALL_K3S_SKIP_ENABLE:-}" != true ]; then
    systemctl enable "$unit"
fi
if [ "${INSTALL_K3S_SKIP_START:-}" = true ]; then
    exit 0
fi

stamp="$data/restart_stamp"
if [ -n "${RESTART_STAMP:-}" ] && [ "$(cat "$stamp" 2>/dev/null || true)" = "$RESTART_STAMP" ] \
    && systemctl is-active "$unit" >/dev/null 2>&1; then
    exit 0
fi
systemctl restart "$unit"
mkdir -p "$data"
printf '%s\n' "${RESTART_STAMP:-}" | put 0600 "$stamp"
