//! Finds the processes of a unit.

use std::{collections::HashMap, fs};

/// Returns the processes whose environment contains the invocation id, and the descendants of `main`.
pub(crate) fn of(invocation: &str, main: Option<i32>) -> Vec<i32> {
    let mark = format!("INVOCATION_ID={invocation}").into_bytes();
    let parents: HashMap<i32, i32> = all().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let descends = |mut pid: i32| {
        // A chain cannot be longer than the table. The limit guards against changes of the process table.
        for _ in 0..parents.len() + 1 {
            if Some(pid) == main {
                return true;
            }
            match parents.get(&pid) {
                Some(next) => pid = *next,
                None => return false,
            }
        }
        false
    };
    parents
        .keys()
        .copied()
        .filter(|pid| *pid != 1 && alive(*pid))
        .filter(|pid| (main.is_some() && descends(*pid)) || carries(*pid, &mark))
        .collect()
}

/// Whether a process exists and is not a zombie.
pub(crate) fn alive(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// Whether this pid namespace has a running process other than process 1.
pub(crate) fn any_but_init() -> bool {
    all().any(|pid| pid != 1 && alive(pid))
}

fn all() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flat_map(|entries| entries.flatten())
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn carries(pid: i32, mark: &[u8]) -> bool {
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|all| all.split(|byte| *byte == 0).any(|var| var == mark))
}

fn parent(pid: i32) -> Option<i32> {
    stat(pid).map(|(_, parent)| parent)
}

fn stat(pid: i32) -> Option<(char, i32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain any character.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn processes_are_found_by_environment_and_by_parent() {
        let id = uuid::Uuid::new_v4().to_string();
        let mut child =
            std::process::Command::new("sleep").arg("60").env("INVOCATION_ID", &id).spawn().unwrap();
        let pid = child.id() as i32;
        // While a program is being loaded, its environment is not readable yet.
        let deadline = Instant::now() + Duration::from_secs(30);
        while of(&id, None) != [pid] {
            assert!(Instant::now() < deadline, "{:?}", of(&id, None));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(of("none", Some(std::process::id() as i32)).contains(&pid));
        assert!(alive(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!alive(pid) && of(&id, None).is_empty());
    }
}
