use super::*;

const NOW: &str = "2026-01-01T12:00:00Z";

fn run(entries: &[(&str, &str)], first: bool) -> Decision {
    let data: Data =
        entries.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
    decide(&Scope { data: &data, checksum: Some("c"), first, failed_since: None, now: NOW.parse().unwrap() })
}

fn apply(attempt: i64, commit: bool) -> Decision {
    Decision::Apply { attempt, commit }
}

#[test]
fn without_a_plan_there_is_nothing_to_do() {
    let scope = Scope {
        data: &Data::new(),
        checksum: None,
        first: true,
        failed_since: None,
        now: NOW.parse().unwrap(),
    };
    assert_eq!(decide(&scope), Decision::NoPlan);
}

#[test]
fn agent_check_6_checksum_mode_applies_once_after_each_start() {
    assert_eq!(run(&[("applied-checksum", "c")], true), apply(1, false));
    assert_eq!(run(&[("applied-checksum", "c")], false), Decision::Idle(Idle::Applied));
    assert_eq!(run(&[("applied-checksum", "other")], false), apply(1, false));
    assert_eq!(run(&[("plan-state", "")], false), apply(1, false), "an empty state is no state");
}

#[test]
fn agent_check_7_state_mode_does_not_apply_again_after_a_start() {
    assert_eq!(
        run(&[("plan-state", "succeeded"), ("applied-checksum", "c")], true),
        Decision::Idle(Idle::Applied)
    );
}

#[test]
fn agent_check_8_pending_is_committed_first() {
    assert_eq!(run(&[("plan-state", "pending")], false), apply(1, true));
    assert_eq!(run(&[("plan-state", "pending"), ("applied-checksum", "c")], false), apply(1, true));
}

#[test]
fn agent_check_9_in_progress_is_resumed_with_the_same_number() {
    assert_eq!(run(&[("plan-state", "in-progress")], true), apply(1, false));
    let failed = [("plan-state", "in-progress"), ("failed-checksum", "c"), ("failure-count", "2")];
    assert_eq!(run(&failed, true), apply(3, false));
}

#[test]
fn agent_check_10_checksum_mode_stops_at_max_failures_and_cools_down() {
    let at = |count, last| {
        [("failed-checksum", "c"), ("failure-count", count), ("max-failures", "2"), ("last-apply-time", last)]
    };
    assert_eq!(run(&at("2", ""), false), Decision::Idle(Idle::GivenUp));
    assert_eq!(run(&at("2", ""), true), Decision::Idle(Idle::GivenUp), "a restart does not retry");
    let just_now = at("1", "Thu Jan  1 11:59:50 UTC 2026");
    assert_eq!(run(&just_now, false), Decision::Wait(SignedDuration::from_secs(20)));
    assert_eq!(run(&just_now, true), Decision::Wait(SignedDuration::from_secs(20)));
    assert_eq!(run(&at("1", "Thu Jan  1 11:59:30 UTC 2026"), false), apply(2, false));
    assert_eq!(
        run(&at("1", "Thu Jan  1 13:00:00 UTC 2026"), false),
        apply(2, false),
        "the clock was set back"
    );
    for unlimited in ["-1", "", "many"] {
        let entries = [("failed-checksum", "c"), ("failure-count", "99"), ("max-failures", unlimited)];
        assert_eq!(run(&entries, false), apply(100, false));
    }
}

#[test]
fn agent_check_12_failures_of_another_plan_do_not_count() {
    let entries = [
        ("failed-checksum", "old"),
        ("failure-count", "7"),
        ("max-failures", "2"),
        ("last-apply-time", "Thu Jan  1 11:59:59 UTC 2026"),
    ];
    assert_eq!(run(&entries, false), apply(1, false));
}

#[test]
fn a_plan_that_is_requested_again_continues_the_count() {
    let entries =
        [("plan-state", "pending"), ("failed-checksum", "c"), ("failure-count", "3"), ("max-failures", "3")];
    assert_eq!(run(&entries, false), apply(4, true));
}

#[test]
fn final_states_of_another_plan_are_ignored() {
    assert_eq!(
        run(&[("plan-state", "succeeded"), ("applied-checksum", "x")], true),
        Decision::Idle(Idle::NotRequested)
    );
    assert_eq!(
        run(&[("plan-state", "failed"), ("failed-checksum", "x")], true),
        Decision::Idle(Idle::NotRequested)
    );
    let failed = [("plan-state", "failed"), ("failed-checksum", "c"), ("failure-count", "1")];
    assert_eq!(run(&failed, true), Decision::Idle(Idle::GivenUp));
    assert_eq!(run(&[("plan-state", "cancelled")], true), Decision::Idle(Idle::Unsupported));
    assert_eq!(run(&[("plan-state", "of-the-future")], true), Decision::Idle(Idle::Unsupported));
}

#[test]
fn the_monotonic_clock_takes_precedence_over_the_wall_clock() {
    let data: Data = [
        ("failed-checksum", "c"),
        ("failure-count", "1"),
        ("last-apply-time", "Thu Jan  1 10:00:00 UTC 2026"),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()))
    .collect();
    let scope = Scope {
        data: &data,
        checksum: Some("c"),
        first: false,
        failed_since: Some(SignedDuration::from_secs(5)),
        now: NOW.parse().unwrap(),
    };
    assert_eq!(decide(&scope), Decision::Wait(SignedDuration::from_secs(25)));
    assert_eq!(decide(&scope), decide(&scope), "the same input gives the same decision");
}

#[test]
fn counts_do_not_overflow() {
    let most = i64::MAX.to_string();
    for state in ["pending", "in-progress", ""] {
        let entries = [("plan-state", state), ("failed-checksum", "c"), ("failure-count", most.as_str())];
        assert_eq!(run(&entries, false), apply(i64::MAX, state == "pending"));
    }
}
