// The originals kube-apiserver and kube-controller-manager in one executable, so that they are built and linked once:
// `kubernetes kube-apiserver …` and `kubernetes kube-controller-manager …`.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	roles := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
	}
	if len(os.Args) < 2 || roles[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "the first argument must be kube-apiserver or kube-controller-manager")
		os.Exit(2)
	}
	role := os.Args[1]
	os.Args = append([]string{role}, os.Args[2:]...)
	os.Exit(cli.Run(roles[role]()))
}
