// A registry client that many people use, to try Drover's own registry with.
package main

import (
	"os"

	"github.com/google/go-containerregistry/cmd/crane/cmd"
	"github.com/google/go-containerregistry/pkg/crane"
)

func main() {
	if err := cmd.New("crane", "pulls and looks into images", []crane.Option{}).Execute(); err != nil {
		os.Exit(1)
	}
}
