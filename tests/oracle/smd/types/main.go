// Generates crates/apiserver/src/patch/builtin_types.txt, the table of built-in types: which lists are sets or keyed,
// which maps are atomic, which fields a strategic merge patch merges. The source is the Go modules that publish the
// types. Usage:
//
//	go run . > ../../../../crates/apiserver/src/patch/builtin_types.txt
//
// With the argument `owned`, it reads a JSON list of `{"object": …}` and adds the fields that the creator of each
// object owns, for crates/apiserver/src/patch/tests/owned.json:
//
//	go run . owned < owned.json > owned.new && mv owned.new owned.json
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"sort"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// Versions that are served; other types are included only if these refer to them.
var served = regexp.MustCompile(`^(v1|autoscaling/v[12]|[a-z0-9.]+/v1)$`)

var sources = []string{
	"k8s.io/client-go/applyconfigurations/internal/internal.go",
	"k8s.io/kube-aggregator/pkg/client/applyconfiguration/internal/internal.go",
}

func main() {
	must(apiextensions.AddToScheme(scheme.Scheme))
	must(apiregistration.AddToScheme(scheme.Scheme))
	if len(os.Args) > 1 && os.Args[1] == "owned" {
		owned()
		return
	}
	types := map[string]schema.Atom{}
	for _, source := range sources {
		for _, def := range load(source) {
			if _, known := types[def.Name]; !known || def.Name == "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta" {
				types[def.Name] = def.Atom
			}
		}
	}
	for _, def := range customResourceDefinitions().Types {
		if _, known := types[def.Name]; !known {
			types[def.Name] = def.Atom
		}
	}

	t := table{types: types, goTypes: map[string]reflect.Type{}, todo: map[string]bool{}, done: map[string]string{}}
	var kinds []string
	for gvk, goType := range scheme.Scheme.AllKnownTypes() {
		name := typeName(goType)
		if _, known := types[name]; !known || !served.MatchString(gvk.GroupVersion().String()) || strings.HasSuffix(gvk.Kind, "List") {
			continue
		}
		if _, hasMeta := goType.FieldByName("ObjectMeta"); !hasMeta {
			continue
		}
		t.visitGo(goType)
		t.todo[name] = true
		kinds = append(kinds, fmt.Sprintf("kind %s %s %s", gvk.GroupVersion(), gvk.Kind, short(name)))
	}
	for len(t.todo) > 0 {
		for name := range t.todo {
			delete(t.todo, name)
			t.done[name] = t.define(name)
		}
	}
	sort.Strings(kinds)
	var defs []string
	for _, def := range t.done {
		defs = append(defs, def)
	}
	sort.Strings(defs)
	fmt.Println("# Written by tests/oracle/smd/types from the types of Kubernetes v1.36; see table.rs for the form.")
	for _, line := range append(kinds, defs...) {
		fmt.Println(line)
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func load(source string) []schema.TypeDef {
	module := strings.Join(strings.Split(source, "/")[:2], "/")
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	must(err)
	text, err := os.ReadFile(strings.TrimSpace(string(dir)) + strings.TrimPrefix(source, module))
	must(err)
	yaml := strings.Split(string(text), "`")[1]
	parser, err := typed.NewParser(typed.YAMLObject(yaml))
	must(err)
	return parser.Schema.Types
}

// customResourceDefinitions builds the types from the OpenAPI document, because no schema is published.
func customResourceDefinitions() *schema.Schema {
	refs := func(path string) spec.Ref { return spec.MustCreateRef("#/definitions/" + path) }
	models := map[string]*spec.Schema{}
	for name, definition := range openapi.GetOpenAPIDefinitions(refs) {
		if strings.HasPrefix(name, "io.k8s.apiextensions-apiserver") || strings.HasPrefix(name, "io.k8s.apimachinery") {
			models[name] = &definition.Schema
		}
	}
	converted, err := schemaconv.ToSchemaFromOpenAPI(models, false)
	must(err)
	return converted
}

type table struct {
	types   map[string]schema.Atom
	goTypes map[string]reflect.Type
	todo    map[string]bool
	done    map[string]string
}

func typeName(t reflect.Type) string {
	parts := strings.SplitN(t.PkgPath(), "/", 2)
	hosts := strings.Split(parts[0], ".")
	for i, j := 0, len(hosts)-1; i < j; i, j = i+1, j-1 {
		hosts[i], hosts[j] = hosts[j], hosts[i]
	}
	if len(parts) < 2 {
		return t.Name()
	}
	return strings.Join(hosts, ".") + "." + strings.ReplaceAll(parts[1], "/", ".") + "." + t.Name()
}

// visitGo records the Go type of every reachable struct.
func (t *table) visitGo(goType reflect.Type) {
	switch goType.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		t.visitGo(goType.Elem())
	case reflect.Struct:
		name := typeName(goType)
		if t.goTypes[name] != nil {
			return
		}
		t.goTypes[name] = goType
		for i := 0; i < goType.NumField(); i++ {
			t.visitGo(goType.Field(i).Type)
		}
	}
}

// goField finds a field by its JSON name, also in embedded structs.
func goField(goType reflect.Type, name string) (reflect.StructField, bool) {
	for i := 0; goType != nil && i < goType.NumField(); i++ {
		field := goType.Field(i)
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous && (tag == "" || tag == "metadata" && field.Name != "ObjectMeta") && field.Type.Kind() == reflect.Struct {
			if found, ok := goField(field.Type, name); ok {
				return found, true
			}
		}
		if tag == name {
			return field, true
		}
	}
	return reflect.StructField{}, false
}

func short(name string) string {
	name = strings.TrimPrefix(name, "io.k8s.")
	name = strings.TrimPrefix(name, "api.")
	name = strings.ReplaceAll(name, "apimachinery.pkg.apis.", "")
	name = strings.ReplaceAll(name, "apimachinery.pkg.", "")
	name = strings.ReplaceAll(name, "apiextensions-apiserver.pkg.apis.", "")
	return strings.ReplaceAll(name, "kube-aggregator.pkg.apis.", "")
}

func (t *table) define(name string) string {
	atom := t.types[name]
	line := "type " + short(name)
	if atom.Map == nil || atom.Scalar != nil || atom.List != nil {
		return line + " = " + t.atom(atom)
	}
	if atom.Map.ElementRelationship == schema.Atomic {
		line += " atomic"
	}
	if ref := atom.Map.ElementType; ref.NamedType != nil || ref.Inlined != (schema.Atom{}) {
		line += " *:" + t.ref(ref)
	}
	fields := append([]schema.StructField{}, atom.Map.Fields...)
	sort.Slice(fields, func(i, j int) bool { return fields[i].Name < fields[j].Name })
	for _, field := range fields {
		line += " " + field.Name + ":" + t.ref(field.Type) + t.marks(name, field)
	}
	return line
}

// marks: `+` for a field that is always present, `~` or `~key` for a list that patches merge, `=json` for the default
// of a key field.
func (t *table) marks(owner string, field schema.StructField) string {
	marks := ""
	if goField, ok := goField(t.goTypes[owner], field.Name); ok {
		tag := goField.Tag.Get("json")
		omit := strings.Contains(tag, ",omitempty") || strings.Contains(tag, ",omitzero")
		switch goField.Type.Kind() {
		case reflect.Struct:
			if !strings.Contains(tag, ",omitzero") {
				marks += "+"
			}
		case reflect.Slice, reflect.Map:
			if !omit {
				marks += "+"
			}
		}
		switch strategy := goField.Tag.Get("patchStrategy"); strategy {
		case "merge", "merge,retainKeys", "retainKeys,merge":
			marks += "~" + goField.Tag.Get("patchMergeKey")
		case "", "retainKeys":
		case "replace":
			marks += "~!"
		default:
			must(fmt.Errorf("%s.%s: patch strategy %q", owner, field.Name, strategy))
		}
	}
	if field.Default != nil && t.isKey(owner, field.Name) {
		value, err := json.Marshal(field.Default)
		must(err)
		marks += "=" + string(value)
	}
	return marks
}

func (t *table) resolve(ref schema.TypeRef) schema.Atom {
	if ref.NamedType != nil {
		return t.types[*ref.NamedType]
	}
	return ref.Inlined
}

// isKey reports whether a list identifies items of this type by the field.
func (t *table) isKey(owner, field string) bool {
	for _, atom := range t.types {
		if atom.Map == nil {
			continue
		}
		for _, f := range atom.Map.Fields {
			list := t.resolve(f.Type).List
			if list == nil || list.ElementType.NamedType == nil || *list.ElementType.NamedType != owner {
				continue
			}
			for _, key := range list.Keys {
				if key == field {
					return true
				}
			}
		}
	}
	return false
}

func (t *table) ref(ref schema.TypeRef) string {
	if ref.NamedType == nil {
		return t.atom(ref.Inlined)
	}
	name := *ref.NamedType
	switch name {
	case "__untyped_atomic_":
		return "any"
	case "__untyped_deduced_":
		return "deduced"
	}
	if t.done[name] == "" {
		t.todo[name] = true
	}
	atomic := ""
	if ref.ElementRelationship != nil && *ref.ElementRelationship == schema.Atomic {
		atomic = "!"
	}
	return "@" + atomic + short(name)
}

func (t *table) atom(atom schema.Atom) string {
	switch {
	case atom.Scalar != nil && atom.Map == nil && atom.List == nil:
		return map[schema.Scalar]string{schema.String: "s", schema.Numeric: "n", schema.Boolean: "b", schema.Untyped: "u"}[*atom.Scalar]
	case atom.Scalar != nil && atom.Map != nil && atom.Map.ElementRelationship != schema.Atomic:
		return "deduced"
	case atom.Scalar != nil:
		return "any"
	case atom.List != nil && atom.List.ElementRelationship == schema.Atomic:
		return "list(" + t.ref(atom.List.ElementType) + ")"
	case atom.List != nil && len(atom.List.Keys) == 0:
		return "set(" + t.ref(atom.List.ElementType) + ")"
	case atom.List != nil:
		return "by(" + strings.Join(atom.List.Keys, ",") + ";" + t.ref(atom.List.ElementType) + ")"
	case atom.Map != nil && len(atom.Map.Fields) > 0:
		must(fmt.Errorf("inline struct"))
	case atom.Map != nil && atom.Map.ElementRelationship == schema.Atomic:
		return "atomicmap(" + t.ref(atom.Map.ElementType) + ")"
	case atom.Map != nil:
		return "map(" + t.ref(atom.Map.ElementType) + ")"
	}
	return "any"
}
