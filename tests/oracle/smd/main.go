// Executes histories of writes with the original field manager, for the comparison with Drover's.
//
// Each line of standard input is one case; each line of standard output has the state after every step of it.
// crates/smd/tests/oracle writes the cases.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

const (
	group = "oracle.example"
	kind  = "Thing"
)

type testCase struct {
	// Schemas by name; a step refers to one of them.
	Schemas []json.RawMessage `json:"schemas"`
	Steps   []step            `json:"steps"`
	// Instead of a history: a patch of one object.
	Strategic *strategic `json:"strategic"`
	// After the history: a step whose duration is measured.
	Bench *step `json:"bench"`
}

type strategic struct {
	Object map[string]interface{} `json:"object"`
	Patch  map[string]interface{} `json:"patch"`
}

type step struct {
	Schema      int                    `json:"schema"`
	Version     string                 `json:"version"`
	Subresource string                 `json:"subresource"`
	Manager     string                 `json:"manager"`
	Apply       bool                   `json:"apply"`
	Force       bool                   `json:"force"`
	Object      map[string]interface{} `json:"object"`
}

type result struct {
	Object    map[string]interface{} `json:"object"`
	Managed   []entry                `json:"managed"`
	Error     string                 `json:"error,omitempty"`
	Conflicts []conflict             `json:"conflicts,omitempty"`
	// The duration of the measured step.
	Nanoseconds int64 `json:"nanoseconds,omitempty"`
}

type entry struct {
	Manager     string `json:"manager"`
	Operation   string `json:"operation"`
	APIVersion  string `json:"apiVersion"`
	Subresource string `json:"subresource"`
	Timed       bool   `json:"timed"`
	Fields      string `json:"fields"`
}

type conflict struct {
	Message string `json:"message"`
	Field   string `json:"field"`
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	for in.Scan() {
		var c testCase
		must(json.Unmarshal(in.Bytes(), &c))
		if c.Strategic != nil {
			must(encoder.Encode([]result{merge(c)}))
			continue
		}
		results, err := play(&c)
		must(err)
		must(encoder.Encode(results))
	}
	must(in.Err())
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// merge applies a strategic merge patch.
func merge(c testCase) result {
	model := &spec.Schema{}
	must(json.Unmarshal(c.Schemas[0], model))
	original := normalize(c.Strategic.Object).(map[string]interface{})
	patch := normalize(c.Strategic.Patch).(map[string]interface{})
	meta := strategicpatch.PatchMetaFromOpenAPIV3{Schema: model}
	merged, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(original, patch, meta)
	if err != nil {
		return result{Error: err.Error()}
	}
	return result{Object: merged}
}

func play(c *testCase) ([]result, error) {
	var live *unstructured.Unstructured
	var results []result
	for _, s := range c.Steps {
		converter, err := typeConverter(c.Schemas[s.Schema])
		if err != nil {
			return nil, err
		}
		gvk := schema.GroupVersionKind{Group: group, Version: s.Version, Kind: kind}
		manager, err := managedfields.NewDefaultCRDFieldManager(converter, conversions{}, noDefaults{}, creater{}, gvk, gvk.GroupVersion(), s.Subresource, resetFields(s.Subresource))
		if err != nil {
			return nil, err
		}
		object, err := write(manager, live, gvk, s)
		r := result{}
		if err != nil {
			r.Error = err.Error()
			var status apierrors.APIStatus
			if errors.As(err, &status) && status.Status().Details != nil {
				for _, cause := range status.Status().Details.Causes {
					r.Conflicts = append(r.Conflicts, conflict{cause.Message, cause.Field})
				}
			}
		} else {
			object.SetUID("1")
			live = object
		}
		if live != nil {
			r.Object = live.DeepCopy().Object
			for _, m := range live.GetManagedFields() {
				fields, err := canonical(m.FieldsV1.Raw)
				if err != nil {
					return nil, err
				}
				r.Managed = append(r.Managed, entry{m.Manager, string(m.Operation), m.APIVersion, m.Subresource, m.Time != nil, fields})
			}
			unstructured.RemoveNestedField(r.Object, "metadata", "managedFields")
		}
		results = append(results, r)
	}
	if c.Bench != nil {
		return measure(c, live)
	}
	return results, nil
}

// measure repeats one step for about half a second. As in a server, the field manager is created once, and each write
// begins with the decoded live object.
func measure(c *testCase, live *unstructured.Unstructured) ([]result, error) {
	converter, err := typeConverter(c.Schemas[0])
	if err != nil {
		return nil, err
	}
	gvk := schema.GroupVersionKind{Group: group, Version: c.Bench.Version, Kind: kind}
	manager, err := managedfields.NewDefaultCRDFieldManager(converter, conversions{}, noDefaults{}, creater{}, gvk, gvk.GroupVersion(), c.Bench.Subresource, resetFields(c.Bench.Subresource))
	if err != nil {
		return nil, err
	}
	object := c.Bench.Object
	start, rounds := time.Now(), int64(0)
	for ; time.Since(start) < 500*time.Millisecond; rounds++ {
		c.Bench.Object = runtime.DeepCopyJSON(object)
		if _, err := write(manager, live, gvk, *c.Bench); err != nil {
			return nil, err
		}
	}
	return []result{{Nanoseconds: time.Since(start).Nanoseconds() / rounds}}, nil
}

func write(manager *managedfields.FieldManager, live *unstructured.Unstructured, gvk schema.GroupVersionKind, s step) (*unstructured.Unstructured, error) {
	before := &unstructured.Unstructured{Object: map[string]interface{}{}}
	before.SetGroupVersionKind(gvk)
	if live != nil {
		before = live.DeepCopy()
		before.SetGroupVersionKind(gvk)
	}
	object := &unstructured.Unstructured{Object: normalize(s.Object).(map[string]interface{})}
	var after runtime.Object
	var err error
	if s.Apply {
		after, err = manager.Apply(before, object, s.Manager, s.Force)
	} else {
		after, err = manager.Update(before, object, s.Manager)
	}
	if err != nil {
		return nil, err
	}
	return after.(*unstructured.Unstructured), nil
}

// canonical encodes a set as the original does.
func canonical(raw []byte) (string, error) {
	set := fieldpath.NewSet()
	if err := set.FromJSON(bytes.NewReader(raw)); err != nil {
		return "", err
	}
	out, err := set.ToJSON()
	return string(out), err
}

// normalize converts integers to int64, as the server's decoder does.
func normalize(v interface{}) interface{} {
	switch t := v.(type) {
	case map[string]interface{}:
		for k := range t {
			t[k] = normalize(t[k])
		}
	case []interface{}:
		for i := range t {
			t[i] = normalize(t[i])
		}
	case float64:
		if t == float64(int64(t)) {
			return int64(t)
		}
	}
	return v
}

func resetFields(subresource string) map[fieldpath.APIVersion]fieldpath.Filter {
	reset := fieldpath.NewSet(fieldpath.MakePathOrDie("status"))
	if subresource == "status" {
		reset = fieldpath.NewSet(fieldpath.MakePathOrDie("metadata"), fieldpath.MakePathOrDie("spec"))
	}
	filters := map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, version := range []string{"v1", "v2"} {
		filters[fieldpath.APIVersion(group+"/"+version)] = reset
	}
	return fieldpath.NewExcludeFilterSetMap(filters)
}

func typeConverter(raw json.RawMessage) (managedfields.TypeConverter, error) {
	models := map[string]*spec.Schema{}
	for _, version := range []string{"v1", "v2"} {
		model := &spec.Schema{}
		if err := json.Unmarshal(raw, model); err != nil {
			return nil, err
		}
		model.AddExtension("x-kubernetes-group-version-kind", []interface{}{
			map[string]interface{}{"group": group, "version": version, "kind": kind},
		})
		models["example."+version+".Thing"] = model
	}
	return managedfields.NewTypeConverter(models, false)
}

// conversions between v1 and v2, which have the same form.
type conversions struct{}

func (conversions) Convert(in, out, context interface{}) error { return errors.New("not used") }

func (conversions) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	from := in.GetObjectKind().GroupVersionKind()
	to, ok := gv.KindForGroupVersionKinds([]schema.GroupVersionKind{{Group: group, Version: "v1", Kind: kind}, {Group: group, Version: "v2", Kind: kind}})
	if !ok {
		return nil, runtime.NewNotRegisteredErrForTarget("oracle", nil, gv)
	}
	if from == to {
		return in, nil
	}
	out := in.(*unstructured.Unstructured).DeepCopy()
	out.SetGroupVersionKind(to)
	return out, nil
}

func (conversions) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

type noDefaults struct{}

func (noDefaults) Default(runtime.Object) {}

type creater struct{}

func (creater) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	out := &unstructured.Unstructured{Object: map[string]interface{}{}}
	out.SetGroupVersionKind(gvk)
	return out, nil
}
