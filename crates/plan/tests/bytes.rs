//! The bytes of plans and results, which both sides hash and compare.

#![allow(clippy::unwrap_used)] // a helper outside #[test] functions
use std::collections::BTreeMap;

use drover_plan::{
    File, HttpGetAction, OneTimeInstruction, PeriodicInstruction, PeriodicInstructionOutput, Plan, PlanState,
    Probe, ProbeStatus, checksum, from_slice, keys, to_vec,
};

fn text<T: serde::Serialize>(value: &T) -> String {
    String::from_utf8(to_vec(value).unwrap()).unwrap()
}

#[test]
fn an_empty_plan_is_an_empty_object() {
    assert_eq!(text(&Plan::default()), "{}");
    assert_eq!(checksum(b"{}"), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
}

#[test]
fn fields_keep_the_order_of_the_original() {
    let plan = Plan {
        files: vec![File {
            content: "YQ==".into(),
            directory: true,
            uid: 1,
            gid: 2,
            path: "/a".into(),
            permissions: "0644".into(),
            action: "delete".into(),
            dynamic: true,
            minor: true,
        }],
        instructions: vec![OneTimeInstruction {
            name: "install".into(),
            image: "i:1".into(),
            env: vec!["A=b".into()],
            args: vec!["-c".into(), "run.sh".into()],
            command: "sh".into(),
            script: "x".into(),
            save_output: true,
        }],
        periodic_instructions: vec![PeriodicInstruction {
            name: "p".into(),
            period_seconds: 5,
            save_stderr_output: true,
            ..Default::default()
        }],
        probes: BTreeMap::from([
            ("b".into(), Probe::default()),
            (
                "a".into(),
                Probe {
                    initial_delay_seconds: 1,
                    timeout_seconds: 5,
                    success_threshold: 1,
                    failure_threshold: 5,
                    http_get: HttpGetAction {
                        url: "https://x".into(),
                        insecure: true,
                        client_cert: "c".into(),
                        client_key: "k".into(),
                        ca_cert: "ca".into(),
                    },
                },
            ),
        ]),
        error: "e".into(),
    };
    let expected = concat!(
        r#"{"files":[{"content":"YQ==","directory":true,"uid":1,"gid":2,"path":"/a","permissions":"0644","#,
        r#""action":"delete","dynamic":true,"minor":true}],"#,
        r#""instructions":[{"name":"install","image":"i:1","env":["A=b"],"args":["-c","run.sh"],"command":"sh","#,
        r#""script":"x","saveOutput":true}],"#,
        r#""periodicInstructions":[{"name":"p","periodSeconds":5,"saveStderrOutput":true}],"#,
        r#""probes":{"a":{"initialDelaySeconds":1,"timeoutSeconds":5,"successThreshold":1,"failureThreshold":5,"#,
        r#""httpGet":{"url":"https://x","insecure":true,"clientCert":"c","clientKey":"k","caCert":"ca"}},"#,
        r#""b":{"httpGet":{}}},"error":"e"}"#,
    );
    assert_eq!(text(&plan), expected);
    assert_eq!(from_slice::<Plan>(expected.as_bytes()).unwrap(), plan);
}

#[test]
fn strings_are_escaped_as_in_go() {
    let plan = Plan { error: "a<b>&\u{2028}\u{2029}\"\\\n\t\u{1}é\u{7f}".into(), ..Default::default() };
    assert_eq!(
        text(&plan),
        "{\"error\":\"a\\u003cb\\u003e\\u0026\\u2028\\u2029\\\"\\\\\\n\\t\\u0001é\u{7f}\"}"
    );
    assert_eq!(from_slice::<Plan>(&to_vec(&plan).unwrap()).unwrap(), plan);
}

#[test]
fn unknown_fields_and_nulls_are_ignored() {
    let plan: Plan = from_slice(
        br#"{"files":null,"later":{"x":1},"probes":null,"instructions":[{"name":"a","new":1,"env":null}]}"#,
    )
    .unwrap();
    assert_eq!(plan.instructions[0].name, "a");
    assert!(plan.files.is_empty());
}

#[test]
fn probe_statuses_omit_zeros_and_periodic_outputs_omit_nothing() {
    assert_eq!(text(&ProbeStatus::default()), "{}");
    assert_eq!(
        text(&ProbeStatus { healthy: true, success_count: 1, failure_count: 0 }),
        r#"{"healthy":true,"successCount":1}"#
    );
    let output = PeriodicInstructionOutput { name: "n".into(), stdout: b"hi".to_vec(), ..Default::default() };
    assert_eq!(
        text(&output),
        r#"{"name":"n","stdout":"aGk=","stderr":"","exitCode":0,"lastSuccessfulRunTime":"","failures":0,"lastFailedRunTime":""}"#
    );
    let read: PeriodicInstructionOutput =
        from_slice(br#"{"name":"n","stdout":"aGk=","stderr":null}"#).unwrap();
    assert_eq!(read, output);
}

#[test]
fn states_have_the_values_of_the_secret() {
    for state in [
        PlanState::Pending,
        PlanState::InProgress,
        PlanState::Succeeded,
        PlanState::Failed,
        PlanState::Cancelled,
    ] {
        assert_eq!(PlanState::parse(state.as_str().as_bytes()), Some(state));
    }
    assert_eq!(PlanState::parse(b"Pending"), None);
    assert!(!keys::AGENT_OWNED.contains(&keys::PLAN));
    assert!(!keys::AGENT_OWNED.contains(&keys::APPLIED_PLAN));
}
