#!/bin/sh
# Removes the node agent from this machine. Kubernetes stays, unless --purge-distribution is given.
#
# For installers that download their uninstaller from the server; the installer that Drover serves writes its own.
# The agent removes itself and this script. This script removes nothing, so that --help or an invalid argument keeps both.
PREFIX=${CATTLE_AGENT_BIN_PREFIX:-$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)}
AGENT=$PREFIX/bin/rancher-system-agent
if [ ! -x "$AGENT" ]; then
    echo "[FATAL] no agent found at $AGENT" >&2
    exit 1
fi
CATTLE_AGENT_CONFIG="${CATTLE_AGENT_CONFIG:-${CATTLE_AGENT_CONFIG_DIR:-/etc/rancher/agent}/config.yaml}" "$AGENT" uninstall "$@"
