package deploy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A node that one of the three files does not know would get no requests, or
// would not be watched.
func TestTheStackAgreesOnItsNodes(t *testing.T) {
	nodes := find(t, "compose.yaml", `(?m)^  (\w+): \{<<: \*node,`)
	if got := find(t, "haproxy/haproxy.cfg", `(?m)^    server-template \S+ \d+ (\S+):8080$`); !slices.Equal(got, nodes) {
		t.Errorf("HAProxy sends to %v, compose starts %v", got, nodes)
	}
	if got := find(t, "prometheus/prometheus.yml", `names: \[(.*)\]`); !slices.Equal(got, nodes) {
		t.Errorf("Prometheus watches %v, compose starts %v", got, nodes)
	}
	places, connections := 0, 0
	_, err1 := fmt.Sscan(find(t, "haproxy/haproxy.cfg", `server-template node (\d+)`)[0], &places)
	_, err2 := fmt.Sscan(find(t, "compose.yaml", `-cmax_connections=(\d+)`)[0], &connections)
	if err1 != nil || err2 != nil || places*20 > connections*9/10 { // a node opens 20
		t.Errorf("%d nodes on %d connections of Postgres (%v %v)", places, connections, err1, err2)
	}
}

func TestTheStackAgreesOnItsPorts(t *testing.T) {
	admin := find(t, "Dockerfile", `LISTEDGE_ADMIN_LISTEN=\S+:(\d+)`)[0]
	for file, pattern := range map[string]string{
		"haproxy/haproxy.cfg":       `check port (\d+)`,
		"prometheus/prometheus.yml": `names: \[node\]\s+type: A\s+port: (\d+)`,
	} {
		for _, got := range find(t, file, pattern) {
			if got != admin {
				t.Errorf("%s asks the admin port %s, the image has %s", file, got, admin)
			}
		}
	}
	if got := find(t, "Dockerfile", `EXPOSE (.+)`)[0]; got != "8080 "+admin {
		t.Errorf("the image exposes %s", got)
	}
	metrics := find(t, "prometheus/prometheus.yml", `'haproxy:(\d+)'`)[0]
	if !slices.Contains(find(t, "haproxy/haproxy.cfg", `bind :(\d+)`), metrics) {
		t.Errorf("Prometheus asks HAProxy on port %s, on which it does not listen", metrics)
	}
}

func TestTheImageIsBuiltWithTheModulesGo(t *testing.T) {
	module := find(t, "../go.mod", `(?m)^go (\d+\.\d+)`)[0]
	if image := find(t, "Dockerfile", `BUILD_IMAGE=golang:(\S+)`)[0]; !strings.HasPrefix(image, module) {
		t.Errorf("the image is built with Go %s, the module asks for %s", image, module)
	}
}
