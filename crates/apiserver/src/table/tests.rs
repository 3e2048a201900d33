use jiff::Timestamp;
use serde_json::{Value, json};

use super::builtin::printer;
use super::custom::CustomPrinter;
use super::*;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn cells(group: &str, object: Value) -> Vec<String> {
    let kind = object["kind"].as_str().unwrap().to_owned();
    let printer = printer(group, &kind);
    let cells = printer.cells(&object, now());
    assert_eq!(cells.len(), printer.columns().len(), "{kind}");
    cells
        .iter()
        .map(|c| match c {
            Value::String(s) => s.clone(),
            other => other.to_string(),
        })
        .collect()
}

fn meta() -> Value {
    json!({"name": "n", "namespace": "d", "creationTimestamp": "2026-01-01T00:00:00Z"})
}

fn columns(group: &str, kind: &str) -> String {
    let columns = printer(group, kind).columns();
    columns
        .iter()
        .map(|c| format!("{}{}", c.name, "*".repeat(c.priority as usize)))
        .collect::<Vec<_>>()
        .join(",")
}

/// The columns, and which of them are for `-o wide`.
#[test]
fn columns_match_upstream() {
    for (group, kind, wanted) in [
        ("", "Pod", "Name,Ready,Status,Restarts,Age,IP*,Node*,Nominated Node*,Readiness Gates*"),
        (
            "",
            "Node",
            "Name,Status,Roles,Age,Version,Internal-IP*,External-IP*,OS-Image*,Kernel-Version*,Container-Runtime*",
        ),
        ("", "Namespace", "Name,Status,Age"),
        ("", "Secret", "Name,Type,Data,Age"),
        ("", "ConfigMap", "Name,Data,Age"),
        ("", "ServiceAccount", "Name,Age"),
        ("", "Service", "Name,Type,Cluster-IP,External-IP,Port(s),Age,Selector*"),
        ("", "Endpoints", "Name,Endpoints,Age"),
        ("discovery.k8s.io", "EndpointSlice", "Name,AddressType,Ports,Endpoints,Age"),
        ("", "Event", "Last Seen,Type,Reason,Object,Subobject*,Source*,Message,First Seen*,Count*,Name*"),
        ("coordination.k8s.io", "Lease", "Name,Holder,Age"),
        ("batch", "Job", "Name,Status,Completions,Duration,Age,Containers*,Images*,Selector*"),
        ("apps", "Deployment", "Name,Ready,Up-to-date,Available,Age,Containers*,Images*,Selector*"),
        ("apps", "StatefulSet", "Name,Ready,Age,Containers*,Images*"),
        (
            "apps",
            "DaemonSet",
            "Name,Desired,Current,Ready,Up-to-date,Available,Node Selector,Age,Containers*,Images*,Selector*",
        ),
        ("apps", "ReplicaSet", "Name,Desired,Current,Ready,Age,Containers*,Images*,Selector*"),
        ("rbac.authorization.k8s.io", "RoleBinding", "Name,Role,Age,Users*,Groups*,ServiceAccounts*"),
        ("rbac.authorization.k8s.io", "ClusterRole", "Name,Created At"),
        ("apiextensions.k8s.io", "CustomResourceDefinition", "Name,Created At"),
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", "Name,Webhooks,Age"),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", "Name,Validations,ParamKind,Age"),
        ("apiregistration.k8s.io", "APIService", "Name,Service,Available,Age"),
    ] {
        assert_eq!(columns(group, kind), wanted, "{kind}");
    }
    assert_eq!(printer("", "Pod").columns()[0].format, "name");
}

#[test]
fn status_of_pods() {
    let pod = |status: Value, extra: Value| {
        let mut pod = json!({
            "kind": "Pod", "metadata": meta(),
            "spec": {"containers": [{"name": "a"}, {"name": "b"}], "nodeName": "node-1"}, "status": status,
        });
        for (key, value) in extra.as_object().into_iter().flatten() {
            pod["metadata"][key] = value.clone();
        }
        cells("", pod)
    };
    let running = json!({"ready": true, "restartCount": 2, "state": {"running": {}},
                         "lastState": {"terminated": {"finishedAt": "2026-01-01T00:55:00Z"}}});
    let waiting =
        json!({"ready": false, "restartCount": 0, "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
    let done = json!({"ready": false, "restartCount": 0, "state": {"terminated": {"reason": "Completed", "exitCode": 0}}});
    let crashed = json!({"ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 3}}});
    assert_eq!(
        pod(
            json!({"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [running, running]}),
            json!({})
        ),
        ["n", "2/2", "Running", "4 (5m ago)", "60m", "10.0.0.1", "node-1", "<none>", "<none>"]
    );
    let state = |status: Value, extra: Value| pod(status, extra)[2].clone();
    let none = json!({});
    assert_eq!(state(json!({"phase": "Pending"}), none.clone()), "Pending");
    assert_eq!(
        state(json!({"phase": "Running", "containerStatuses": [running, waiting]}), none.clone()),
        "CrashLoopBackOff"
    );
    assert_eq!(
        state(json!({"phase": "Running", "containerStatuses": [done, running]}), none.clone()),
        "NotReady"
    );
    assert_eq!(state(json!({"phase": "Failed", "containerStatuses": [crashed]}), none.clone()), "ExitCode:3");
    assert_eq!(state(json!({"phase": "Failed", "reason": "Evicted"}), none.clone()), "Evicted");
    assert_eq!(
        state(json!({"phase": "Pending", "initContainerStatuses": [{"state": {"running": {}}}]}), none),
        "Init:0/0"
    );
    let deleting = json!({"deletionTimestamp": "2026-01-01T00:59:00Z"});
    assert_eq!(state(json!({"phase": "Running"}), deleting.clone()), "Terminating");
    assert_eq!(state(json!({"phase": "Succeeded"}), deleting), "Succeeded");
}

#[test]
fn jobs_deployments_nodes_and_services() {
    let template =
        json!({"spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "j"}]}});
    assert_eq!(
        cells(
            "batch",
            json!({"kind": "Job", "metadata": meta(), "spec": {"completions": 3, "template": template,
                "selector": {"matchLabels": {"a": "b"}}},
                "status": {"succeeded": 1, "startTime": "2026-01-01T00:58:55Z"}})
        ),
        ["n", "Running", "1/3", "65s", "60m", "c,d", "i,j", "a=b"]
    );
    assert_eq!(
        cells(
            "batch",
            json!({"kind": "Job", "metadata": meta(), "spec": {"parallelism": 2},
                "status": {"succeeded": 1, "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:09Z",
                           "conditions": [{"type": "Complete", "status": "True"}]}})
        )[..4],
        ["n", "Complete", "1/1 of 2", "9s"]
    );
    assert_eq!(
        cells(
            "apps",
            json!({"kind": "Deployment", "metadata": meta(), "spec": {"replicas": 3, "template": template},
                "status": {"readyReplicas": 1, "updatedReplicas": 2, "availableReplicas": 1}})
        ),
        ["n", "1/3", "2", "1", "60m", "c,d", "i,j", "<none>"]
    );
    let mut node = json!({"kind": "Node", "metadata": meta(), "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.36.0"},
                   "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}});
    node["metadata"]["labels"] =
        json!({"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/etcd": "true"});
    assert_eq!(
        cells("", node),
        [
            "n",
            "Ready,SchedulingDisabled",
            "etcd,worker",
            "60m",
            "v1.36.0",
            "10.0.0.1",
            "<none>",
            "<unknown>",
            "<unknown>",
            "<unknown>"
        ]
    );
    assert_eq!(
        cells(
            "",
            json!({"kind": "Service", "metadata": meta(), "spec": {"type": "LoadBalancer", "clusterIP": "10.1.0.1",
                "selector": {"a": "b"}, "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}})
        ),
        ["n", "LoadBalancer", "10.1.0.1", "<pending>", "80:30080/TCP,53/UDP", "60m", "a=b"]
    );
}

#[test]
fn events_configuration_and_rbac() {
    assert_eq!(
        cells(
            "",
            json!({"kind": "Event", "metadata": meta(), "type": "Warning", "reason": "Failed", "message": " no \n", "count": 4,
                "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.x"},
                "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:59:00Z",
                "source": {"component": "kubelet", "host": "h"}})
        ),
        ["60s", "Warning", "Failed", "pod/p", "spec.x", "kubelet, h", "no", "60m", "4", "n"]
    );
    assert_eq!(
        cells(
            "",
            json!({"kind": "Secret", "metadata": meta(), "type": "Opaque", "data": {"a": "", "b": ""}})
        ),
        ["n", "Opaque", "2", "60m"]
    );
    assert_eq!(
        cells(
            "rbac.authorization.k8s.io",
            json!({"kind": "RoleBinding", "metadata": meta(), "roleRef": {"kind": "ClusterRole", "name": "edit"},
                "subjects": [{"kind": "User", "name": "u"}, {"kind": "Group", "name": "g"},
                             {"kind": "ServiceAccount", "namespace": "x", "name": "s"}]})
        ),
        ["n", "ClusterRole/edit", "60m", "u", "g", "x/s"]
    );
    assert_eq!(
        cells("rbac.authorization.k8s.io", json!({"kind": "Role", "metadata": meta()})),
        ["n", "2026-01-01T00:00:00Z"]
    );
    assert_eq!(
        cells(
            "",
            json!({"kind": "Endpoints", "metadata": meta(), "subsets": [{"ports": [{"port": 80}],
                "addresses": [{"ip": "1.1.1.1"}, {"ip": "1.1.1.2"}, {"ip": "1.1.1.3"}, {"ip": "1.1.1.4"}]}]})
        )[1],
        "1.1.1.1:80,1.1.1.2:80,1.1.1.3:80 + 1 more..."
    );
}

#[test]
fn custom_columns() {
    let printer = CustomPrinter::new(&[
        json!({"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}),
        json!({"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"}),
        json!({"name": "Since", "type": "date", "jsonPath": ".metadata.creationTimestamp", "priority": 1}),
        json!({"name": "Bad", "type": "date", "jsonPath": ".spec.replicas"}),
        json!({"name": "Wrong", "type": "integer", "jsonPath": ".spec.name"}),
        json!({"name": "Absent", "type": "string", "jsonPath": ".spec.absent"}),
    ]);
    let object = json!({
        "metadata": meta(), "spec": {"replicas": 3, "name": "x"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    assert_eq!(
        Value::Array(printer.cells(&object, now())),
        json!(["n", "True", 3, "60m", "<invalid>", null, null])
    );
    assert_eq!(printer.columns()[3].priority, 1);
    let plain = CustomPrinter::new(&[]);
    assert_eq!(Value::Array(plain.cells(&object, now())), json!(["n", "60m"]));
}
