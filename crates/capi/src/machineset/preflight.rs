//! Checks before a Machine is made: the control plane stands still, and versions fit.

use drover_api::annotations::capi as annotations;

use super::scope::Scope;
use crate::meta;
use crate::version::Version;

/// Why no Machine should be made now, if there is a reason.
///
/// Control planes that have no `spec.version` (Rancher's has none) are not judged.
pub fn failure(scope: &Scope) -> Option<String> {
    let control_plane = scope.control_plane.provided()?;
    let wanted = control_plane.text("/spec/version")?;
    let skipped =
        meta::annotation(&scope.set.metadata, annotations::SKIP_PREFLIGHT_CHECKS).unwrap_or_default();
    let runs = |check: &str| !skipped.split(',').map(str::trim).any(|name| name == check || name == "All");
    if runs("ControlPlaneIsStable") {
        let Some(current) = control_plane.text("/status/version") else {
            return Some("the control plane is provisioning (ControlPlaneIsStable)".to_owned());
        };
        if Version::parse(&wanted) > Version::parse(&current) {
            return Some(format!(
                "the control plane is upgrading from {current} to {wanted} (ControlPlaneIsStable)"
            ));
        }
    }
    let ours = scope.set.spec.template.spec.version.as_deref()?;
    let (control_plane, set) = (Version::parse(&wanted)?, Version::parse(ours)?);
    if runs("KubernetesVersionSkew") {
        if (set.major, set.minor) > (control_plane.major, control_plane.minor) {
            return Some(format!(
                "version {ours} is newer than the control plane's {wanted} (KubernetesVersionSkew)"
            ));
        }
        if set.major == control_plane.major && set.minor + 3 < control_plane.minor {
            return Some(format!(
                "version {ours} is more than three minors older than the control plane's {wanted} (KubernetesVersionSkew)"
            ));
        }
    }
    None
}
