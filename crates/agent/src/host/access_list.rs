//! Translates Unix modes to Windows access lists.
//!
//! Root, the owner of nearly everything in a plan, corresponds to the system account and the administrators, who get
//! full access. The permissions for others apply to everyone; those for the group to nobody, because it is root's
//! group. Nothing is inherited from the parent directory: otherwise every user that can log in could write below `C:\`.

/// The owner and access list for this mode, as a Windows security descriptor.
pub(super) fn describe(mode: u32, directory: bool) -> String {
    // Files that programs create in a directory get the access list of the directory.
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
    fn everyone_gets_the_permissions_for_others() {
        assert_eq!(describe(0o600, false), "O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)");
        assert_eq!(describe(0o660, false), describe(0o600, false), "the group is root");
        assert_eq!(describe(0o644, false), "O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;FR;;;WD)");
        assert_eq!(describe(0o700, true), "O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)");
        assert!(describe(0o755, true).ends_with("(A;OICI;FRFX;;;WD)"));
        assert!(describe(0o777, false).ends_with("(A;;FRFWFX;;;WD)"));
    }
}
