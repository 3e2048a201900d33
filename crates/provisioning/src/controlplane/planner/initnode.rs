//! Which etcd machine starts the cluster; every other machine joins it.

use super::entry::Entry;
use crate::controlplane::waits::Waiting;
use crate::keys::labels;

/// What the election says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Election {
    /// This entry (by index) is marked and stays.
    Elected(usize),
    /// These marks have to change before anything else happens.
    Remark { clear: Vec<usize>, set: Option<usize> },
    /// No machine can be elected yet.
    Waiting(Waiting),
}

/// Elects the init node. `designated` is the machine id a person asked for, if any.
pub fn elect(entries: &[Entry], designated: Option<&str>) -> Election {
    let marked: Vec<usize> = indexes(entries, |entry| entry.is_init_node());
    if let Some(machine_id) = designated.filter(|id| !id.is_empty()) {
        return elect_designated(entries, &marked, machine_id);
    }
    if let [only] = marked[..]
        && is_candidate(&entries[only])
    {
        let another_joined =
            entries.iter().enumerate().any(|(i, e)| i != only && is_candidate(e) && !e.join_url().is_empty());
        if !entries[only].join_url().is_empty() || !another_joined {
            return Election::Elected(only);
        }
    }
    if !marked.is_empty() {
        return Election::Remark { clear: marked, set: None };
    }
    let candidates = indexes(entries, is_candidate);
    let chosen = candidates
        .iter()
        .copied()
        .find(|&index| !entries[index].join_url().is_empty())
        .or(candidates.first().copied());
    match chosen {
        Some(index) => Election::Remark { clear: vec![], set: Some(index) },
        None => Election::Waiting(Waiting::InitNode),
    }
}

fn elect_designated(entries: &[Entry], marked: &[usize], machine_id: &str) -> Election {
    let found = entries.iter().position(|entry| {
        is_candidate(entry)
            && (entry.label(labels::MACHINE_ID) == machine_id
                || entry.machine.labels.get(labels::MACHINE_ID).is_some_and(|id| id == machine_id))
    });
    let Some(index) = found else {
        return Election::Waiting(Waiting::DesignatedInitNode { machine_id: machine_id.to_owned() });
    };
    if marked == [index] {
        return Election::Elected(index);
    }
    let clear: Vec<usize> = marked.iter().copied().filter(|&other| other != index).collect();
    let set = (!marked.contains(&index)).then_some(index);
    Election::Remark { clear, set }
}

fn is_candidate(entry: &Entry) -> bool {
    entry.is_etcd()
        && !entry.is_deleting()
        && entry.machine.phase != "Failed"
        && entry.machine.infrastructure_ready
}

fn indexes(entries: &[Entry], wanted: impl Fn(&Entry) -> bool) -> Vec<usize> {
    entries.iter().enumerate().filter(|(_, entry)| wanted(entry)).map(|(index, _)| index).collect()
}
