// Command prototable generates the table of protobuf fields of the built-in kinds (src/protobuf/table.txt) from the Go
// types of Kubernetes. Usage: go run . > ../../src/protobuf/table.txt
package main

import (
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	scheduling "k8s.io/api/scheduling/v1"
	storage "k8s.io/api/storage/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Types with their own JSON encoding, by name.
var special = map[string]string{
	"meta.v1.Time": "time", "meta.v1.MicroTime": "microtime", "meta.v1.Duration": "duration",
	"resource.Quantity": "quantity", "intstr.IntOrString": "intorstring", "runtime.RawExtension": "raw",
	"meta.v1.FieldsV1": "raw",
}

var seen = map[string]string{}

func name(t reflect.Type) string {
	path := strings.TrimPrefix(strings.TrimPrefix(t.PkgPath(), "k8s.io/api/"), "k8s.io/apimachinery/pkg/")
	path = strings.TrimPrefix(strings.TrimPrefix(path, "apis/"), "api/")
	path = strings.TrimPrefix(path, "util/")
	return strings.ReplaceAll(path, "/", ".") + "." + t.Name()
}

func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return kindOf(t.Elem())
	case reflect.String:
		return "s"
	case reflect.Bool:
		return "b"
	case reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return "i"
	case reflect.Float64:
		return "d"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "y"
		}
		if t.Name() != "" && t.Elem().Kind() == reflect.String {
			return "items" // a named list is a message with one repeated field
		}
		return "[" + kindOf(t.Elem())
	case reflect.Map:
		return "{" + kindOf(t.Elem())
	case reflect.Struct:
		id := name(t)
		if s, ok := special[id]; ok {
			return s
		}
		if _, ok := seen[id]; !ok {
			seen[id] = ""
			seen[id] = fields(t)
		}
		return "@" + id
	}
	panic("cannot encode " + t.String())
}

func fields(t reflect.Type) string {
	var out []string
	for i := range t.NumField() {
		field := t.Field(i)
		proto, ok := field.Tag.Lookup("protobuf")
		if !ok {
			continue
		}
		number := strings.Split(proto, ",")[1]
		json := strings.Split(field.Tag.Get("json"), ",")
		marks := ""
		for _, option := range json[1:] {
			if option == "omitempty" || option == "omitzero" {
				marks = "?"
			}
		}
		if field.Type.Kind() == reflect.Pointer {
			marks = ""
		}
		out = append(out, fmt.Sprintf("%s:%s%s:%s", number, json[0], marks, kindOf(field.Type)))
	}
	return strings.Join(out, " ")
}

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistration.AddToScheme, apps.AddToScheme, authentication.AddToScheme, authorization.AddToScheme,
		autoscalingv1.AddToScheme, autoscaling.AddToScheme, batch.AddToScheme, coordination.AddToScheme,
		core.AddToScheme, discovery.AddToScheme, events.AddToScheme, networking.AddToScheme, policy.AddToScheme,
		rbac.AddToScheme, scheduling.AddToScheme, storage.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	var kinds []string
	for gvk, t := range scheme.AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal || strings.HasSuffix(gvk.Kind, "List") || strings.HasSuffix(gvk.Kind, "Options") {
			continue
		}
		if gvk.Kind == "WatchEvent" || gvk.Kind == "Status" || gvk.Kind == "RangeAllocation" {
			continue
		}
		id := strings.TrimPrefix(kindOf(t), "@")
		kinds = append(kinds, fmt.Sprintf("kind %s %s %s", gvk.GroupVersion(), gvk.Kind, id))
	}
	kinds = append(kinds, "kind * DeleteOptions "+strings.TrimPrefix(kindOf(reflect.TypeFor[meta.DeleteOptions]()), "@"))
	sort.Strings(kinds)
	var types []string
	for id, fields := range seen {
		types = append(types, strings.TrimRight(fmt.Sprintf("type %s %s", id, fields), " "))
	}
	sort.Strings(types)
	fmt.Fprintln(os.Stdout, "# Written by tools/prototable from the types of Kubernetes v1.36; see table.rs for the form.")
	fmt.Fprintln(os.Stdout, strings.Join(append(kinds, types...), "\n"))
}
