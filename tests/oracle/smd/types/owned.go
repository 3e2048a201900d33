package main

import (
	"encoding/json"
	"os"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
)

type example struct {
	Object json.RawMessage `json:"object"`
	Owned  json.RawMessage `json:"owned"`
}

// owned creates typed objects with the original field manager.
func owned() {
	var examples []example
	must(json.NewDecoder(os.Stdin).Decode(&examples))
	converter := applyconfigurations.NewTypeConverter(scheme.Scheme)
	for i := range examples {
		object, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(examples[i].Object, nil, nil)
		must(err)
		object.GetObjectKind().SetGroupVersionKind(*gvk)
		empty, err := scheme.Scheme.New(*gvk)
		must(err)
		empty.GetObjectKind().SetGroupVersionKind(*gvk)
		gv := gvk.GroupVersion()
		manager, err := managedfields.NewDefaultFieldManager(converter, sameVersion{}, scheme.Scheme, scheme.Scheme, *gvk, gv, "", nil)
		must(err)
		created, err := manager.Update(empty, object, "creator")
		must(err)
		accessor, err := meta.Accessor(created)
		must(err)
		examples[i].Owned = accessor.GetManagedFields()[0].FieldsV1.Raw
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", " ")
	must(encoder.Encode(examples))
}

// sameVersion does not convert: all objects have the same version.
type sameVersion struct{ runtime.ObjectConvertor }

func (sameVersion) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}
