#!/bin/sh
# Removes the node agent from this machine. Kubernetes stays, unless --purge-distribution is given.
#
# For installers that fetch their uninstaller from the server; the one that the server itself serves writes its own.
# The agent removes itself and this script. Nothing is removed here: whoever asks for --help, or mistypes, keeps both.
PREFIX=${CATTLE_AGENT_BIN_PREFIX:-$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)}
AGENT=$PREFIX/bin/rancher-system-agent
if [ ! -x "$AGENT" ]; then
    echo "[FATAL] there is no agent at $AGENT" >&2
    exit 1
fi
CATTLE_AGENT_CONFIG="${CATTLE_AGENT_CONFIG:-${CATTLE_AGENT_CONFIG_DIR:-/etc/rancher/agent}/config.yaml}" "$AGENT" uninstall "$@"
