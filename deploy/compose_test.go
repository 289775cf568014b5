package deploy_test

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// stack is compose.yaml as `docker compose` would load it: checked against the
// schema, variables filled in, references followed.
func stack(t *testing.T, variables ...string) *types.Project {
	t.Helper()
	options := must1(cli.NewProjectOptions([]string{"compose.yaml"}, cli.WithEnv(variables), cli.WithProfiles([]string{"*"})))
	project := must1(options.LoadProject(t.Context()))
	return project
}

func TestTheStackIsValid(t *testing.T) {
	s := stack(t)
	nodes := 0
	for name, service := range s.Services {
		for _, v := range service.Volumes {
			if _, err := os.Stat(v.Source); v.Type == types.VolumeTypeBind && err != nil {
				t.Errorf("%s mounts %s, which is not there", name, v.Source)
			}
		}
		if service.Image != "listedge" {
			if _, tag, _ := strings.Cut(service.Image, ":"); tag == "" || tag == "latest" {
				t.Errorf("%s has whatever image is newest", name)
			}
			continue
		}
		command := slices.Clone([]string(service.Command))
		if len(command) == 0 {
			nodes += service.GetScale()
			if service.ContainerName != "" || service.Hostname != "" || len(service.Ports) > 0 {
				t.Errorf("%s cannot be scaled: it has a name or a port that only one can have", name)
			}
			command = find(t, "Dockerfile", `CMD \["(\w+)"\]`)
			if grace := time.Duration(*service.StopGracePeriod); grace < defaultDrain(t)+stopTimeout(t)+5*time.Second {
				t.Errorf("%s has %s to stop", name, grace)
			}
		}
		var names []string
		for variable := range service.Environment {
			names = append(names, variable)
		}
		checkSettings(t, name, names, command...)
		var given, wants []string
		for _, s := range service.Secrets {
			given = append(given, "/run/secrets/"+s.Source)
		}
		for _, variable := range slices.Sorted(maps.Keys(service.Environment)) {
			if strings.HasSuffix(variable, "_FILE") {
				wants = append(wants, *service.Environment[variable])
			}
		}
		if len(wants) == 0 || !slices.Equal(given, wants) || len(service.Command) == 0 && len(wants) != 2 {
			t.Errorf("%s wants the files %v and is given %v", name, wants, given)
		}
		if !service.ReadOnly || !slices.Equal(service.CapDrop, []string{"ALL"}) || !slices.Contains(service.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s may do more than it needs", name)
		}
	}
	if nodes != 3 {
		t.Errorf("%d nodes", nodes)
	}
}

// The servers have the passwords by which the nodes connect.
func TestTheStacksSecretsFitTogether(t *testing.T) {
	for secret, config := range stack(t).Secrets {
		if _, err := os.Stat(config.File); err != nil {
			t.Errorf("%s: %v", secret, err)
		}
	}
	if file := stack(t, "SECRETS=/mine").Secrets["redis-url"].File; file != "/mine/redis-url" {
		t.Errorf("SECRETS=/mine leads to %s", file)
	}
	for _, server := range [][2]string{{"postgres-password", "database-url"}, {"redis.conf", "redis-url"}} {
		password := find(t, "secrets/"+server[0], `(\w+)\n$`)[0]
		if used := find(t, "secrets/"+server[1], `:(\w+)@`)[0]; used != password {
			t.Errorf("%s has %s, %s %s", server[1], used, server[0], password)
		}
	}
}

// An image that was built before is named once, by its digest.
func TestTheStackTakesAnImage(t *testing.T) {
	const image = "registry.example/listedge@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	s, ours := stack(t, "LISTEDGE_IMAGE="+image), 0
	for _, service := range s.Services {
		if service.Build != nil {
			if ours++; service.Image != image {
				t.Errorf("%s has image %s", service.Name, service.Image)
			}
		}
	}
	if ours != 2 {
		t.Errorf("%d services run the image of listedge", ours)
	}
}

// defaultDrain is how long a node drains that is started without --drain.
func defaultDrain(t *testing.T) time.Duration {
	t.Helper()
	drain := must1(time.ParseDuration(find(t, "../cmd/listedge/main.go", `Serve +serveCommand .*set:"drain=(\w+)"`)[0]))
	return drain
}

// Whatever runs for long is asked whether it is well: a node, by the command
// of its own that the image has.
func TestTheStackIsAskedHowItIs(t *testing.T) {
	for name, service := range stack(t).Services {
		switch check := service.HealthCheck; {
		case service.Restart == "": // runs to its end
		case check == nil || check.Interval == nil || check.Timeout == nil || check.Retries == nil:
			t.Errorf("%s is not asked, or asked for ever", name)
		case service.Image == "listedge":
			if want := append([]string{"CMD"}, append(find(t, "Dockerfile", `ENTRYPOINT \["(\S+)"\]`), "ready")...); !slices.Equal(check.Test, want) {
				t.Errorf("%s is asked %q, want %q", name, check.Test, want)
			}
		}
	}
	if admin := find(t, "Dockerfile", `LISTEDGE_ADMIN_LISTEN=\S+(:\d+)`)[0]; !strings.Contains(listedge(t, nil, "ready", "--help"), "127.0.0.1"+admin) {
		t.Errorf("the command does not ask where the image listens, %s", admin)
	}
}

// Only what has a password, or is for the public, is reachable from elsewhere.
func TestTheStackShowsOnlyTheAPI(t *testing.T) {
	for name, service := range stack(t).Services {
		for _, p := range service.Ports {
			if p.HostIP != "127.0.0.1" && name != "haproxy" {
				t.Errorf("%s is published on %q", name, p.HostIP)
			}
		}
	}
}

// Grafana finds its files where they are mounted, and Prometheus where it is.
func TestGrafanaIsProvisioned(t *testing.T) {
	s := stack(t)
	grafana := s.Services["grafana"]
	inside := func(file string) bool { // reports whether a file of the container comes from this repository
		for _, v := range grafana.Volumes {
			if rest, ok := strings.CutPrefix(path.Clean(file), v.Target); ok {
				if _, err := os.Stat(filepath.Join(v.Source, rest)); err == nil {
					return true
				}
			}
		}
		return false
	}
	folder := find(t, "grafana/provisioning/dashboards/listedge.yaml", `path: (\S+)`)[0]
	if home := grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]; !inside(*home) || path.Dir(*home) != folder {
		t.Errorf("%s is not there", *home)
	}
	if !inside("/etc/grafana/provisioning/dashboards/listedge.yaml") || !inside("/etc/grafana/provisioning/datasources/prometheus.yaml") {
		t.Error("what is provisioned is not where Grafana looks")
	}
	const source = "grafana/provisioning/datasources/prometheus.yaml"
	if url := find(t, source, `url: (\S+)`)[0]; url != "http://prometheus:9090" || s.Services["prometheus"].Ports[0].Target != 9090 {
		t.Errorf("Grafana asks %s, where Prometheus does not answer", url)
	}
	if is, want := find(t, source, `timeInterval: (\S+)`)[0], find(t, "prometheus/prometheus.yml", `(?m)^  scrape_interval: (\w+)`)[0]; is != want {
		t.Errorf("Grafana thinks that Prometheus asks every %s, and it is %s", is, want)
	}
}

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
