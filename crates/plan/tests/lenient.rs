//! Plans are accepted and rejected exactly as by Go's `encoding/json`, which the original agent uses and writers of
//! plans rely on.

#![allow(clippy::unwrap_used)] // a helper outside #[test] functions

use drover_plan::{Plan, Probe, from_base64, from_slice, to_vec};

/// The normalized plan, which is equal for all plans with the same meaning.
fn read(text: &[u8]) -> Result<String, String> {
    let plan: Plan = from_slice(text).map_err(|error| error.to_string())?;
    Ok(String::from_utf8(to_vec(&plan).unwrap()).unwrap())
}

#[test]
fn plans_that_go_accepts_are_accepted() {
    let same: &[(&str, &str)] = &[
        ("{}", "{}"),
        (" null\n", "{}"),
        (r#"{"Instructions":[{"Command":"false"}]}"#, r#"{"instructions":[{"command":"false"}]}"#),
        (r#"{"INSTRUCTIONS":[{"SAVEoutput":true}]}"#, r#"{"instructions":[{"saveOutput":true}]}"#),
        ("{\"in\u{17f}truction\u{17f}\":[{\"name\":\"a\"}]}", r#"{"instructions":[{"name":"a"}]}"#),
        (r#"{"in\u0073tructions":[{"name":"a\n\u00e9"}]}"#, r#"{"instructions":[{"name":"a\né"}]}"#),
        (r#"{"error":"a","Error":"b"}"#, r#"{"error":"b"}"#),
        (r#"{"Error":"b","error":"a"}"#, r#"{"error":"a"}"#),
        (r#"{"error":"a","ERROR":null}"#, r#"{"error":"a"}"#),
        (r#"{"error":null,"files":null,"probes":null,"instructions":null}"#, "{}"),
        (r#"{"probes":{"x":null}}"#, r#"{"probes":{"x":{"httpGet":{}}}}"#),
        (r#"{"probes":{"x":{"httpGet":null}}}"#, r#"{"probes":{"x":{"httpGet":{}}}}"#),
        (r#"{"probes":{"x":{"HTTPGet":{"URL":"u"}}}}"#, r#"{"probes":{"x":{"httpGet":{"url":"u"}}}}"#),
        // Names of probes are case-sensitive.
        (r#"{"probes":{"X":null,"x":null}}"#, r#"{"probes":{"X":{"httpGet":{}},"x":{"httpGet":{}}}}"#),
        (r#"{"instructions":[null]}"#, r#"{"instructions":[{}]}"#),
        (r#"{"instructions":[{"env":["A=b",null]}]}"#, r#"{"instructions":[{"env":["A=b",""]}]}"#),
        (r#"{"files":[{"uid":-0,"gid":null,"directory":null}]}"#, r#"{"files":[{}]}"#),
        (
            r#"{"error":"\ud800x\udfff\ud83d\ude00\ud83d"}"#,
            "{\"error\":\"\u{fffd}x\u{fffd}\u{1f600}\u{fffd}\"}",
        ),
        (r#"{"error":"\\ud800é\\\ud800\""}"#, "{\"error\":\"\\\\ud800é\\\\\u{fffd}\\\"\"}"),
        (r#"{"later":[1e999,{"x":[[]]}],"error":"e"}"#, r#"{"error":"e"}"#),
    ];
    for (text, expected) in same {
        assert_eq!(read(text.as_bytes()).as_deref(), Ok(*expected), "{text}");
    }
    assert_eq!(read(b"{\"error\":\"a\xffb\"}").as_deref(), Ok("{\"error\":\"a\u{fffd}b\"}"));
    let deep = format!(r#"{{"later":{}{},"error":"e"}}"#, "[".repeat(500), "]".repeat(500));
    assert_eq!(read(deep.as_bytes()).as_deref(), Ok(r#"{"error":"e"}"#));
    assert_eq!(from_slice::<Probe>(b"null").unwrap(), Probe::default());
}

#[test]
fn plans_that_go_rejects_are_rejected_without_revealing_a_value() {
    let refused: &[(&str, &str)] = &[
        ("[]", "a list where an object is expected"),
        (r#""hunter2""#, "a text where an object is expected"),
        ("7", "a number that does not fit where an object is expected"),
        (r#"{"files":{}}"#, "at .files: an object where a list is expected"),
        (r#"{"files":[[]]}"#, "at .files[0]: a list where an object is expected"),
        (r#"{"files":[{},{"uid":"hunter2"}]}"#, "at .files[1].uid: a text where a whole number is expected"),
        (
            r#"{"files":[{"uid":1.5}]}"#,
            "at .files[0].uid: a number that does not fit where a whole number is expected",
        ),
        (
            r#"{"files":[{"uid":9223372036854775808}]}"#,
            "at .files[0].uid: a number that does not fit where a whole number is expected",
        ),
        (r#"{"Error":true}"#, "at .error: true or false where a text is expected"),
        (r#"{"probes":{"x":{"httpGet":[]}}}"#, "at .probes.x.httpGet: a list where an object is expected"),
        (
            r#"{"instructions":[{"saveOutput":"true"}]}"#,
            "at .instructions[0].saveOutput: a text where true or false is expected",
        ),
    ];
    for (text, expected) in refused {
        assert_eq!(read(text.as_bytes()).err().as_deref(), Some(*expected), "{text}");
    }
    for text in
        ["", "{", "{} {}", r#"{"error":"a",}"#, "{'error':1}", "nul", "{\"error\":\"a\nb\"}", "{\"a\":01}"]
    {
        assert!(read(text.as_bytes()).is_err(), "{text:?}");
    }
}

#[test]
fn base64_is_decoded_as_in_go() {
    for (text, bytes) in [
        ("", &b""[..]),
        ("YQ==", b"a"),
        ("YR==", b"a"),
        ("YWJ=", b"ab"),
        ("\r\nY\nQ=\n=\r\n", b"a"),
        ("YW\nJj", b"abc"),
    ] {
        assert_eq!(from_base64(text).as_deref(), Ok(bytes), "{text:?}");
    }
    for text in ["YQ", "YQ=", "YQ===", "Y Q==", "YQ==YQ==", "-_-_", "%%%", "=", "Y\tQ=="] {
        assert!(from_base64(text).is_err(), "{text:?}");
    }
}
