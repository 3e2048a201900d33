//! Bodies: JSON, YAML and protobuf whose decoded form is much larger.

use serde_json::json;

use crate::harness::{FOOS, MAPS, MIB, Server, anything, foo, map};
use crate::meter::exclusive;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_of_many_small_values_is_bounded() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    server.define(anything(), json!([])).await.expect(201);
    let full = |piece: &str| piece.repeat((3 * MIB - 2_000) / piece.len());
    for (what, spec, code) in [
        ("a list of small maps", format!("{{\"l\":[{}0]}}", full("{\"\":0},")), 413),
        ("a list of empty lists", format!("{{\"l\":[{}0]}}", full("[],")), 201),
        ("a list of numbers", format!("{{\"l\":[{}0]}}", full("1,")), 413),
        (
            "a map of many keys",
            format!("{{{}\"\":0}}", (0..80_000).map(|n| format!("\"{n:x}\":0,")).collect::<String>()),
            201,
        ),
        ("the same key many times", format!("{{{}\"\":0}}", full("\"a\":0,")), 201),
        ("one long text", format!("{{\"a\":\"{}\"}}", full("x")), 201),
        ("escapes", format!("{{\"a\":\"{}\"}}", full("\\u0000")), 201),
    ] {
        let body = foo(&format!("n{}", what.len()), &spec);
        let sent = body.len();
        let answer = server.post(FOOS, body).await;
        answer.bounded(what, sent, code);
    }
    // The path of a duplicate or unknown field used to be as long as its keys, once per field.
    let long = "k".repeat(MIB);
    let many: String = "\"a\":1,".repeat(100_000);
    let duplicates = foo("d", &format!("{{\"{long}\":{{{many}\"b\":1}}}}"));
    let sent = duplicates.len();
    server.post(FOOS, duplicates).await.bounded("duplicates below a long key", sent, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_fields_below_a_long_key_are_bounded() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    let inner = json!({"type": "object", "properties": {"known": {"type": "string"}}});
    server.define(json!({"type": "object", "additionalProperties": inner}), json!([])).await.expect(201);
    let many: String = (0..100_000).map(|n| format!("\"u{n}\":1,")).collect();
    let body = foo("u", &format!("{{\"{}\":{{{many}\"b\":1}}}}", "k".repeat(MIB)));
    let sent = body.len();
    for (validation, code) in [("Warn", 201), ("Strict", 400)] {
        let answer = server.post(&format!("{FOOS}?fieldValidation={validation}"), body.clone()).await;
        answer.bounded("unknown fields below a long key", sent, code);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn yaml_aliases_are_bounded() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    let head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: y}\n";
    let mut laughs = format!("{head}x0: &x0 [lol,lol,lol,lol,lol,lol,lol,lol,lol]\n");
    for n in 1..12 {
        let again = vec![format!("*x{}", n - 1); 9].join(",");
        laughs += &format!("x{n}: &x{n} [{again}]\n");
    }
    let text = format!(
        "{head}data:\n  a: &a {}\n{}",
        "x".repeat(MIB),
        (0..90).map(|n| format!("  b{n}: *a\n")).collect::<String>()
    );
    let merge = format!(
        "{head}base: &b {{{}}}\n{}",
        (0..2_000).map(|n| format!("k{n}: v")).collect::<Vec<_>>().join(", "),
        (0..1_000).map(|n| format!("m{n}: {{<<: *b}}\n")).collect::<String>()
    );
    let nested = format!("{head}data: {}1{}", "[".repeat(5_000), "]".repeat(5_000));
    let indented = format!(
        "{head}data:\n{}",
        (0..2_000).map(|n| format!("{}a:\n", " ".repeat(n + 1))).collect::<String>()
    );
    for (what, body) in [
        ("aliases of aliases", laughs),
        ("aliases of a long text", text),
        ("merge keys", merge),
        ("nested flow lists", nested),
        ("nested maps", indented),
    ] {
        let sent = body.len();
        for (method, path, kind) in [
            ("POST", MAPS.to_owned(), "application/yaml"),
            ("PATCH", format!("{MAPS}/y?fieldManager=m"), "application/apply-patch+yaml"),
        ] {
            let answer = server.call(method, &path, &[("content-type", kind)], body.clone()).await;
            let code = answer.code;
            assert!(matches!(code, 400 | 413), "{what}: {code}");
            answer.bounded(what, sent, code);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_bodies_are_not_unpacked() {
    use std::io::Write;
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(map("x", json!({"a": "x".repeat(500 * MIB)})).as_bytes()).unwrap();
    let body = gzip.finish().unwrap();
    let sent = body.len();
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
    let answer = server.call("POST", MAPS, &headers, body).await;
    assert!(answer.taken.peak < 16 * MIB, "{:?}", answer.taken);
    answer.bounded("a gzip body", sent, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protobuf_of_many_small_messages_is_bounded() {
    let _exclusive = exclusive().await;
    let server = Server::start().await;
    let varint = |mut n: usize| {
        let mut out = Vec::new();
        loop {
            let byte = (n & 0x7f) as u8;
            n >>= 7;
            if n == 0 {
                out.push(byte);
                return out;
            }
            out.push(byte | 0x80);
        }
    };
    let field = |number: u8, content: &[u8]| [&[number << 3 | 2], &*varint(content.len()), content].concat();
    let meta = [field(1, b"v1"), field(2, b"Pod")].concat();
    // PodSpec.containers, each with an empty name: four bytes that become a map.
    let containers = field(2, &field(1, b"")).repeat(700_000);
    let body = [&b"k8s\0"[..], &field(1, &meta), &field(2, &field(2, &containers))].concat();
    let sent = body.len();
    assert!(sent < 3 * MIB, "{sent}");
    let headers = [("content-type", "application/vnd.kubernetes.protobuf")];
    let answer = server.call("POST", "/api/v1/namespaces/a/pods", &headers, body).await;
    answer.bounded("protobuf of many small messages", sent, 413);
    // A length beyond the end of the message must not allocate memory.
    let lying = [&b"k8s\0"[..], &[10, 0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
    let answer = server.call("POST", "/api/v1/namespaces/a/pods", &headers, lying).await;
    answer.bounded("protobuf with a false length", 10, 400);
}
