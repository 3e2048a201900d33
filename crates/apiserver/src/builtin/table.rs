//! The table of built-in kinds.

use std::sync::Arc;

use super::{Builtin, config, events, eviction, namespace, rbac, service, storage_kinds, workload};
use crate::resources::{
    NameRule, Propagation, Resource, ResourceDef, Rules, ScalePaths, SelectableField, SubresourceDef,
};
use crate::strategy::Strategy;

/// The verbs of an ordinary resource, in discovery's order.
pub(crate) const ALL_VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// All built-in resources.
pub fn resources() -> Vec<Resource> {
    let mut all = core();
    all.extend(apps_and_batch());
    all.extend(cluster_policy());
    all.into_iter().map(Row::build).collect()
}

struct Row {
    def: ResourceDef,
    strategy: Arc<dyn Strategy>,
}

fn row(group: &str, version: &str, plural: &str, kind: &str) -> Row {
    let def = ResourceDef {
        group: group.into(),
        version: version.into(),
        plural: plural.into(),
        singular: kind.to_lowercase(),
        kind: kind.into(),
        list_kind: format!("{kind}List"),
        verbs: ALL_VERBS.to_vec(),
        rules: Rules { status_annotations: true, ..Rules::default() },
        ..ResourceDef::default()
    };
    Row { def, strategy: Arc::new(no_behaviour()) }
}

impl Row {
    fn namespaced(mut self) -> Self {
        self.def.namespaced = true;
        self
    }

    fn short(mut self, names: &[&str]) -> Self {
        self.def.short_names = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Included in `kubectl get all`.
    fn in_all(mut self) -> Self {
        self.def.categories = vec!["all".into()];
        self
    }

    fn status(mut self) -> Self {
        self.def.subresources.push(SubresourceDef::status(&self.def.kind));
        self.def.rules.wipe_status = true;
        self
    }

    fn subresource(mut self, sub: SubresourceDef) -> Self {
        self.def.subresources.push(sub);
        self
    }

    fn scale(self) -> Self {
        self.scale_by(".spec.selector")
    }

    fn scale_by(self, selector: &str) -> Self {
        let paths = ScalePaths::parse(".spec.replicas", ".status.replicas", Some(selector));
        self.subresource(SubresourceDef::scale(paths))
    }

    fn generation(mut self) -> Self {
        self.def.rules.generation = true;
        self
    }

    fn rules(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(&mut self.def.rules);
        self
    }

    fn fields(mut self, fields: Vec<SelectableField>) -> Self {
        self.def.selectable_fields = fields;
        self
    }

    fn strategy(mut self, strategy: impl Strategy) -> Self {
        self.strategy = Arc::new(strategy);
        self
    }

    fn build(self) -> Resource {
        Resource::new(self.def, self.strategy)
    }
}

fn paths(labels: &[&str]) -> Vec<SelectableField> {
    labels.iter().map(|label| SelectableField::path(label)).collect()
}

fn no_behaviour() -> Builtin {
    <Builtin as Default>::default()
}

fn core() -> Vec<Row> {
    let v1 = |plural: &str, kind: &str| row("", "v1", plural, kind);
    vec![
        v1("namespaces", "Namespace")
            .short(&["ns"])
            .status()
            .subresource(namespace::finalize())
            .rules(|rules| {
                rules.names = NameRule::Label;
                rules.status_labels = true;
            })
            .fields(paths(&["status.phase"]))
            .strategy(Builtin {
                default: Some(namespace::default_namespace),
                create: Some(namespace::create_namespace),
                update: Some(namespace::update_namespace),
                holds: Some(namespace::holds),
                delete: Some(namespace::terminate),
                ..no_behaviour()
            }),
        v1("secrets", "Secret").namespaced().fields(paths(&["type"])).strategy(Builtin {
            default: Some(config::default_secret),
            validate: Some(config::validate_secret),
            ..no_behaviour()
        }),
        v1("configmaps", "ConfigMap")
            .namespaced()
            .short(&["cm"])
            .strategy(Builtin { validate: Some(config::validate_config_map), ..no_behaviour() }),
        v1("serviceaccounts", "ServiceAccount").namespaced().short(&["sa"]),
        v1("services", "Service")
            .namespaced()
            .short(&["svc"])
            .in_all()
            .status()
            .rules(|rules| {
                rules.names = NameRule::Dns1035Label;
                rules.create_on_update = true;
            })
            .fields(paths(&["spec.clusterIP", "spec.type"]))
            .strategy(Builtin {
                default: Some(service::default_service),
                create: Some(service::create_service),
                update: Some(service::update_service),
                validate: Some(service::validate_service),
                ..no_behaviour()
            }),
        v1("endpoints", "Endpoints").namespaced().short(&["ep"]).rules(|rules| rules.create_on_update = true),
        event_row("").fields(event_fields("involvedObject")),
        v1("nodes", "Node")
            .short(&["no"])
            .status()
            .rules(|rules| rules.status_labels = true)
            .fields(vec![SelectableField::at("spec.unschedulable", &["spec.unschedulable"], "false")]),
        v1("pods", "Pod")
            .namespaced()
            .short(&["po"])
            .in_all()
            .status()
            .subresource(eviction::eviction())
            .generation()
            .fields(pod_fields())
            .strategy(Builtin {
                default: Some(workload::default_pod),
                create: Some(workload::create_pod),
                validate: Some(workload::validate_pod),
                ..no_behaviour()
            }),
        v1("persistentvolumes", "PersistentVolume").short(&["pv"]).status().strategy(Builtin {
            default: Some(storage_kinds::default_volume),
            create: Some(storage_kinds::pending),
            ..no_behaviour()
        }),
        v1("persistentvolumeclaims", "PersistentVolumeClaim").namespaced().short(&["pvc"]).status().strategy(
            Builtin {
                default: Some(storage_kinds::default_claim),
                create: Some(storage_kinds::pending),
                ..no_behaviour()
            },
        ),
        v1("limitranges", "LimitRange")
            .namespaced()
            .short(&["limits"])
            .rules(|rules| rules.create_on_update = true),
        v1("resourcequotas", "ResourceQuota").namespaced().short(&["quota"]).status(),
        v1("podtemplates", "PodTemplate")
            .namespaced()
            .strategy(Builtin { default: Some(workload::default_pod_template), ..no_behaviour() }),
        v1("replicationcontrollers", "ReplicationController")
            .namespaced()
            .short(&["rc"])
            .in_all()
            .status()
            .scale()
            .generation()
            .rules(|rules| rules.propagation = Propagation::Orphan)
            .fields(paths(&["status.replicas"]))
            .strategy(Builtin { default: Some(workload::default_replication_controller), ..no_behaviour() }),
    ]
}

fn event_row(group: &str) -> Row {
    row(group, "v1", "events", "Event").namespaced().short(&["ev"]).rules(|rules| {
        rules.create_on_update = true;
        rules.garbage_collected = false;
    })
}

/// Selectable fields of events; the two groups have different names for the object of an event.
fn event_fields(about: &str) -> Vec<SelectableField> {
    let object = ["kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"];
    // Values are read from the stored form, which is that of the core group.
    let mut fields: Vec<SelectableField> = object
        .iter()
        .map(|field| {
            SelectableField::at(&format!("{about}.{field}"), &[&format!("involvedObject.{field}")], "")
        })
        .collect();
    fields.push(SelectableField::path("reason"));
    fields.push(SelectableField::path("type"));
    let component = ["reportingComponent", "source.component"];
    if about == "regarding" {
        fields.push(SelectableField::at("reportingController", &component, ""));
    } else {
        fields.push(SelectableField::at("reportingComponent", &["reportingComponent"], ""));
        fields.push(SelectableField::at("source", &["source.component", "reportingComponent"], ""));
    }
    fields
}

fn pod_fields() -> Vec<SelectableField> {
    paths(&[
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ])
}

fn apps_and_batch() -> Vec<Row> {
    let apps = |plural: &str, kind: &str| row("apps", "v1", plural, kind).namespaced();
    let batch = |plural: &str, kind: &str| row("batch", "v1", plural, kind).namespaced();
    let workload = |default: fn(&mut serde_json::Value)| Builtin {
        default: Some(default),
        validate: Some(workload::validate_workload),
        ..no_behaviour()
    };
    vec![
        apps("deployments", "Deployment")
            .short(&["deploy"])
            .in_all()
            .status()
            .scale()
            .generation()
            .strategy(workload(workload::default_deployment)),
        apps("replicasets", "ReplicaSet")
            .short(&["rs"])
            .in_all()
            .status()
            .scale()
            .generation()
            .fields(paths(&["status.replicas"]))
            .strategy(workload(workload::default_replica_set)),
        apps("statefulsets", "StatefulSet")
            .short(&["sts"])
            .in_all()
            .status()
            .scale()
            .generation()
            .strategy(workload(workload::default_stateful_set)),
        apps("daemonsets", "DaemonSet")
            .short(&["ds"])
            .in_all()
            .status()
            .generation()
            .strategy(workload(workload::default_daemon_set)),
        apps("controllerrevisions", "ControllerRevision"),
        batch("jobs", "Job")
            .in_all()
            .status()
            .generation()
            .rules(|rules| rules.propagation = Propagation::Orphan)
            .fields(vec![SelectableField::at("status.successful", &["status.succeeded"], "0")])
            .strategy(Builtin {
                default: Some(workload::default_job),
                create: Some(workload::create_job),
                validate: Some(workload::validate_job),
                ..no_behaviour()
            }),
        batch("cronjobs", "CronJob").short(&["cj"]).in_all().status().generation().strategy(Builtin {
            default: Some(workload::default_cron_job),
            validate: Some(workload::validate_cron_job),
            ..no_behaviour()
        }),
    ]
}

fn cluster_policy() -> Vec<Row> {
    let rbac = |plural: &str, kind: &str| {
        row("rbac.authorization.k8s.io", "v1", plural, kind).rules(|rules| {
            rules.create_on_update = true;
            rules.names = NameRule::PathSegment;
        })
    };
    let role = Builtin { validate: Some(rbac::validate_role), ..no_behaviour() };
    let binding = Builtin {
        default: Some(rbac::default_binding),
        validate: Some(rbac::validate_binding),
        ..no_behaviour()
    };
    let hooks = |plural: &str, kind: &str| {
        row("admissionregistration.k8s.io", "v1", plural, kind)
            .generation()
            .rules(|rules| rules.unconditional_update = false)
    };
    let storage = |plural: &str, kind: &str| row("storage.k8s.io", "v1", plural, kind);
    let networking = |plural: &str, kind: &str| row("networking.k8s.io", "v1", plural, kind);
    let mut new_events =
        event_row("events.k8s.io").fields(event_fields("regarding")).strategy(events::NewEvents);
    new_events.def.storage_group = Some(String::new());
    new_events.def.storage_api_version = "v1".into();
    vec![
        rbac("roles", "Role").namespaced().strategy(role),
        rbac("clusterroles", "ClusterRole").strategy(role),
        rbac("rolebindings", "RoleBinding").namespaced().strategy(binding),
        rbac("clusterrolebindings", "ClusterRoleBinding").strategy(binding),
        row("coordination.k8s.io", "v1", "leases", "Lease")
            .namespaced()
            .rules(|rules| {
                rules.unconditional_update = false;
                rules.create_on_update = true;
            })
            .strategy(Builtin { validate: Some(config::validate_lease), ..no_behaviour() }),
        row("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice").namespaced().generation().strategy(
            Builtin {
                default: Some(config::default_endpoint_slice),
                validate: Some(config::validate_endpoint_slice),
                ..no_behaviour()
            },
        ),
        new_events,
        hooks("mutatingwebhookconfigurations", "MutatingWebhookConfiguration")
            .strategy(Builtin { default: Some(storage_kinds::default_mutating_webhooks), ..no_behaviour() }),
        hooks("validatingwebhookconfigurations", "ValidatingWebhookConfiguration")
            .strategy(Builtin { default: Some(storage_kinds::default_webhooks), ..no_behaviour() }),
        row("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
            .namespaced()
            .short(&["pdb"])
            .status()
            .generation(),
        row("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
            .short(&["pc"])
            .generation()
            .strategy(Builtin {
                default: Some(storage_kinds::default_priority_class),
                validate: Some(storage_kinds::validate_priority_class),
                ..no_behaviour()
            }),
        storage("storageclasses", "StorageClass").short(&["sc"]).strategy(Builtin {
            default: Some(storage_kinds::default_storage_class),
            validate: Some(storage_kinds::validate_storage_class),
            ..no_behaviour()
        }),
        storage("volumeattachments", "VolumeAttachment").status(),
        storage("csinodes", "CSINode"),
        storage("csidrivers", "CSIDriver").generation(),
        networking("ingresses", "Ingress").namespaced().short(&["ing"]).status().generation(),
        networking("networkpolicies", "NetworkPolicy")
            .namespaced()
            .short(&["netpol"])
            .generation()
            .strategy(Builtin { default: Some(storage_kinds::default_network_policy), ..no_behaviour() }),
        networking("ingressclasses", "IngressClass").generation(),
        row("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
            .namespaced()
            .short(&["hpa"])
            .in_all()
            .status()
            .strategy(Builtin { default: Some(storage_kinds::default_autoscaler), ..no_behaviour() }),
        api_services(),
    ]
}

/// Maintained by the server itself, one per served group and version.
fn api_services() -> Row {
    let mut row = row("apiregistration.k8s.io", "v1", "apiservices", "APIService").status();
    row.def.verbs = vec!["get", "list", "watch"];
    row.def.subresources.iter_mut().for_each(|sub| sub.verbs = vec!["get"]);
    row.def.rules.wipe_status = false;
    // `v1.` of the core group is not a subdomain.
    row.def.rules.names = NameRule::PathSegment;
    row
}
