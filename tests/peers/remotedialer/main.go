// The original at the other end of Drover's tunnel: either a client that dials what it is asked for, or a server
// that fetches a URL through the first client that connects.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/rancher/remotedialer"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: peer client WS_URL | peer server HTTP_URL")
	}
	switch os.Args[1] {
	case "client":
		headers := http.Header{"X-Api-Tunnel-Token": {"secret"}, "X-Client": {"go"}}
		allow := func(proto, _ string) bool { return proto == "tcp" }
		err := remotedialer.ClientConnect(context.Background(), os.Args[2], headers, nil, allow, nil)
		log.Fatal(err)
	case "server":
		serve(os.Args[2])
	}
}

func serve(url string) {
	authorize := func(req *http.Request) (string, bool, error) {
		return req.Header.Get("X-Client"), req.Header.Get("X-Api-Tunnel-Token") == "secret", nil
	}
	tunnel := remotedialer.New(authorize, remotedialer.DefaultErrorWriter)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	go func() { log.Fatal(http.Serve(listener, tunnel)) }()

	for !tunnel.HasSession("rust") {
		time.Sleep(5 * time.Millisecond)
	}
	client := http.Client{Transport: &http.Transport{DialContext: tunnel.Dialer("rust")}}
	answer, err := client.Get(url)
	if err != nil {
		log.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d %s\n", answer.StatusCode, body)
}
