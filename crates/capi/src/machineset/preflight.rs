//! Checks before a Machine is created: the control plane is stable, and the versions are compatible.

use drover_api::annotations::capi as annotations;

use super::scope::Scope;
use crate::meta;
use crate::version::Version;
use crate::waits::Hold;

/// Why no Machine should be created now.
///
/// Control planes without `spec.version`, such as Rancher's, are not checked.
pub fn failure(scope: &Scope) -> Option<Hold> {
    let control_plane = scope.control_plane.provided()?;
    let wanted = control_plane.text("/spec/version")?;
    let skipped =
        meta::annotation(&scope.set.metadata, annotations::SKIP_PREFLIGHT_CHECKS).unwrap_or_default();
    let runs = |check: &str| !skipped.split(',').map(str::trim).any(|name| name == check || name == "All");
    if runs("ControlPlaneIsStable") {
        let Some(current) = control_plane.text("/status/version") else {
            return Some(Hold::ControlPlaneProvisioning);
        };
        if Version::parse(&wanted) > Version::parse(&current) {
            return Some(Hold::ControlPlaneUpgrading { from: current, to: wanted });
        }
    }
    let version = scope.set.spec.template.spec.version.as_deref()?;
    let (control_plane, set) = (Version::parse(&wanted)?, Version::parse(version)?);
    if runs("KubernetesVersionSkew") {
        if (set.major, set.minor) > (control_plane.major, control_plane.minor) {
            return Some(Hold::TooNew { version: version.to_owned(), control_plane: wanted });
        }
        if set.major == control_plane.major && set.minor + 3 < control_plane.minor {
            return Some(Hold::TooOld { version: version.to_owned(), control_plane: wanted });
        }
    }
    None
}
