//! Modes of Unix as access lists of Windows.
//!
//! Root, who owns nearly everything in a plan, is the system's account and its administrators there: they may do
//! everything. What a mode gives to all others, everyone gets; what it gives to a group, nobody, since that is root's.
//! Nothing comes from the folder above: what lies in `C:\` would else be writable for whoever may log in.

/// Owner and access list of a path with this mode, in the words of Windows' security descriptors.
pub(super) fn describe(mode: u32, directory: bool) -> String {
    // What programs put into a folder is for those whom the folder is for.
    let inherited = if directory { "OICI" } else { "" };
    let rights: String = [(0o4, "FR"), (0o2, "FW"), (0o1, "FX")]
        .into_iter()
        .filter(|(bit, _)| mode & bit != 0)
        .map(|(_, right)| right)
        .collect();
    let mut text = format!("O:BAD:P(A;{inherited};FA;;;SY)(A;{inherited};FA;;;BA)");
    if !rights.is_empty() {
        text.push_str(&format!("(A;{inherited};{rights};;;WD)"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_may_what_the_mode_gives_to_others_and_no_more() {
        assert_eq!(describe(0o600, false), "O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)");
        assert_eq!(describe(0o660, false), describe(0o600, false), "the group is root");
        assert_eq!(describe(0o644, false), "O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;FR;;;WD)");
        assert_eq!(describe(0o700, true), "O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)");
        assert!(describe(0o755, true).ends_with("(A;OICI;FRFX;;;WD)"));
        assert!(describe(0o777, false).ends_with("(A;;FRFWFX;;;WD)"));
    }
}
