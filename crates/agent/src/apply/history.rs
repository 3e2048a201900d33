//! Keeps copies of the most recently applied plans, for troubleshooting.

use std::{io, path::Path};

use drover_plan::Plan;
use serde::Serialize;

use crate::{
    host::{Attr, Host},
    unix_date,
};

/// The end of each copy's file name.
pub(crate) const SUFFIX: &str = "-applied.plan";
const KEPT: usize = 64;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Applied<'a> {
    plan: &'a Plan,
    checksum: &'a str,
}

/// Adds the plan unless it equals the newest copy, and deletes the oldest copies beyond 64.
pub(super) fn record(host: &dyn Host, directory: &Path, plan: &Plan, checksum: &str) -> io::Result<()> {
    if directory.as_os_str().is_empty() {
        return Ok(());
    }
    host.make_dirs(directory, 0o700)?;
    let bytes = drover_plan::to_vec(&Applied { plan, checksum }).map_err(io::Error::other)?;
    let stamp = unix_date::compact(host.now());
    let mut copies: Vec<String> =
        host.list(directory)?.into_iter().filter(|name| name.ends_with(SUFFIX)).collect();
    // Names in the future were written before the clock was set back, so they are older than this copy.
    let is_past = |name: &String| name.get(..stamp.len()).is_some_and(|written| written <= stamp.as_str());
    copies.sort_by_cached_key(|name| (is_past(name), name.clone()));
    if let Some(newest) = copies.last()
        && host.read(&directory.join(newest)).is_ok_and(|found| found == bytes)
    {
        return Ok(());
    }
    let mut name = format!("{stamp}{SUFFIX}");
    // Several plans within one second: sort after the first one and before the next second.
    let mut twin = 0;
    while copies.contains(&name) {
        twin += 1;
        name = format!("{stamp}-then{twin:03}{SUFFIX}");
    }
    host.replace(&directory.join(&name), &bytes, Attr { mode: 0o600, owner: None })?;
    copies.push(name);
    let excess = copies.len().saturating_sub(KEPT);
    for name in &copies[..excess] {
        host.remove_file(&directory.join(name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{MemoryHost, testing::NoProgram};

    #[tokio::test(start_paused = true)]
    async fn agent_check_36_at_most_64_copies_remain() {
        let host = MemoryHost::new("2026-01-01T00:00:00Z".parse().unwrap(), 1, NoProgram);
        let directory = Path::new("/var/applied");
        for index in 0..100 {
            let plan = Plan { error: index.to_string(), ..Default::default() };
            record(&host, directory, &plan, "c").unwrap();
            record(&host, directory, &plan, "c").unwrap();
            if index % 3 == 0 {
                tokio::time::advance(std::time::Duration::from_secs(1)).await;
            }
        }
        let copies = host.list(directory).unwrap();
        assert_eq!(copies.len(), 64);
        let newest = host.read(&directory.join(copies.last().unwrap())).unwrap();
        assert_eq!(String::from_utf8(newest).unwrap(), r#"{"Plan":{"error":"99"},"Checksum":"c"}"#);
        assert_eq!(host.stat(&directory.join(&copies[0])).unwrap().mode, 0o600);
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_copy_is_kept_after_the_clock_was_set_back() {
        let host = MemoryHost::new("2026-01-01T00:00:00Z".parse().unwrap(), 1, NoProgram);
        let directory = Path::new("/var/applied");
        let write = |index: usize| {
            let plan = Plan { error: index.to_string(), ..Default::default() };
            record(&host, directory, &plan, "c").unwrap();
        };
        let kept = || -> Vec<String> {
            let names = host.list(directory).unwrap().into_iter();
            names.map(|name| String::from_utf8(host.read(&directory.join(name)).unwrap()).unwrap()).collect()
        };
        for index in 0..70 {
            write(index);
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
        }
        host.set_clock(-3600);
        for index in 70..80 {
            write(index);
            write(index);
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
        }
        let copies = kept();
        assert_eq!(copies.len(), 64);
        for index in 16..80 {
            assert!(copies.iter().any(|copy| copy.contains(&format!("\"{index}\""))), "{index}");
        }
    }
}
