//! `crds [--check]`: writes `deploy/crds/*.yaml` from the types, or checks whether they are current.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Runs the chore.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    match arguments {
        [] => write(&folder),
        ["--check"] => check(&folder),
        _ => bail!("usage: cargo run -p xtask -- crds [--check]"),
    }
}

fn write(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let wanted = render(folder)?;
    for path in present(folder)?.into_iter().filter(|path| !wanted.contains_key(path)) {
        std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
    }
    for (path, text) in wanted {
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn check(folder: &Path) -> Result<()> {
    let wanted = render(folder)?;
    let mut stale: Vec<PathBuf> =
        present(folder).unwrap_or_default().into_iter().filter(|path| !wanted.contains_key(path)).collect();
    stale.extend(
        wanted
            .into_iter()
            .filter(|(path, text)| std::fs::read_to_string(path).ok().as_ref() != Some(text))
            .map(|(path, _)| path),
    );
    if stale.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = stale
        .iter()
        .filter_map(|path| path.file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    bail!("deploy/crds is not current ({}); run `cargo run -p xtask -- crds`", names.join(", "))
}

fn render(folder: &Path) -> Result<BTreeMap<PathBuf, String>> {
    drover_api::crds()
        .iter()
        .map(|crd| {
            let path = folder.join(format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural));
            // Through JSON, so that keys are sorted and a change of a type gives a small diff.
            let value = serde_json::to_value(crd)?;
            Ok((path, format!("---\n{}\n", serde_saphyr::to_string(&value)?.trim_end())))
        })
        .collect()
}

fn present(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            paths.push(path);
        }
    }
    Ok(paths)
}
