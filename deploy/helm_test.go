package deploy_test

import (
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/releaseutil"
	"sigs.k8s.io/yaml"
)

const chartFolder = "helm"

// leastValues are those without which the chart makes nothing.
const leastValues = `
trustedProxies: [10.244.0.0/16]
secret: {existing: listedge}
migrate: {secret: {existing: listedge-migrate}}
`

// chartValues reads values as `helm --values` would, a later text over an earlier one.
func chartValues(t *testing.T, texts ...string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, text := range texts {
		var values map[string]any
		must(yaml.Unmarshal([]byte(text), &values))
		all = chartutil.MergeTables(values, all)
	}
	return all
}

// rendered is what `helm template RELEASE deploy/helm --namespace listedge` makes.
func rendered(t *testing.T, release string, values map[string]any) (objects []manifest, err error) {
	t.Helper()
	log.SetOutput(io.Discard) // it logs each symbolic link
	defer log.SetOutput(os.Stderr)
	chart := must1(loader.Load(chartFolder))
	options := chartutil.ReleaseOptions{Name: release, Namespace: "listedge", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	for file, text := range files {
		if path.Base(file) == "NOTES.txt" {
			continue
		}
		for _, document := range releaseutil.SplitManifests(text) {
			var head releaseutil.SimpleHead
			if err := yaml.Unmarshal([]byte(document), &head); err != nil {
				t.Fatalf("%s: %v\n%s", file, err, document)
			}
			if head.Kind != "" {
				objects = append(objects, manifest{head.Version + " " + head.Kind, head.Metadata.Name, document})
			}
		}
	}
	return objects, nil
}

func mustRender(t *testing.T, release string, values ...string) []manifest {
	t.Helper()
	objects := must1(rendered(t, release, chartValues(t, values...)))
	return objects
}

const everythingOn = `
serviceMonitor: {enabled: true, labels: {release: kube-prometheus-stack}}
prometheusRule: {enabled: true, labels: {release: kube-prometheus-stack}}
dashboard: {enabled: true}
autoscaling: {requestsPerSecond: 5k}
imagePullSecrets: [{name: registry}]
service: {type: LoadBalancer, annotations: {a: b}}
serviceAccount: {annotations: {a: b}}
podAnnotations: {a: b}
podLabels: {a: b}
priorityClassName: high
nodeSelector: {disk: fast}
tolerations: [{key: a, operator: Exists}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
volumes: [{name: ca, configMap: {name: ca}}]
volumeMounts: [{name: ca, mountPath: /etc/ca}]
networkPolicy: {egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]}
`

func TestHelmLintAcceptsTheChart(t *testing.T) {
	log.SetOutput(io.Discard)
	defer log.SetOutput(os.Stderr)
	for _, field := range []string{"version", "appVersion"} {
		if is, want := find(t, "helm/Chart.yaml", `(?m)^`+field+`: (.*)$`)[0], versionInSource(t); is != want {
			t.Errorf("the chart's %s is %s, the program's version %s", field, is, want)
		}
	}
	for name, values := range map[string]map[string]any{
		"none":       nil, // as `helm lint deploy/helm`
		"least":      chartValues(t, leastValues),
		"everything": chartValues(t, leastValues, everythingOn),
	} {
		for _, m := range lint.All(chartFolder, values, "listedge", true).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// plain removes what only Helm writes, and the hash from the names of ConfigMaps, so
// that the rest can be compared.
func plain(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			switch inner = plain(inner); {
			case strings.HasPrefix(key, "helm.sh/"), strings.HasPrefix(key, "checksum/"), inner == nil,
				slices.Contains([]string{"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by"}, key):
				delete(v, key)
			default:
				v[key] = inner
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case string:
		return hashed.ReplaceAllString(strings.TrimRight(v, "\n"), "$1") // where a file ends in a block
	}
	return value
}

var hashed = regexp.MustCompile(`^(listedge(?:-dashboard)?)-[a-z0-9]{10}$`)

// Both ways to install make the same objects.
func TestTheChartMakesWhatKustomizeMakes(t *testing.T) {
	compared := func(objects []manifest) map[string]any {
		all := map[string]any{}
		for _, o := range objects {
			var tree any
			must(yaml.Unmarshal([]byte(o.text), &tree))
			if o.kind != "v1 Namespace" { // helm install --create-namespace
				all[o.kind+" "+hashed.ReplaceAllString(o.name, "$1")] = plain(tree)
			}
		}
		return all
	}
	for overlay, values := range map[string]string{
		"single-region": "image: {tag: latest}",
		"with-prometheus-operator": "image: {tag: latest}\nautoscaling: {requestsPerSecond: 5k}\n" +
			"serviceMonitor: {enabled: true}\nprometheusRule: {enabled: true}\ndashboard: {enabled: true}",
	} {
		t.Run(overlay, func(t *testing.T) {
			want := compared(built(t, overlayOf(t, "kubernetes/overlays/"+overlay, "LISTEDGE_TRUSTED_PROXIES=10.244.0.0/16")))
			got := compared(mustRender(t, "listedge", leastValues, values))
			if len(want) < 9 {
				t.Errorf("kustomize makes only %v", slices.Sorted(maps.Keys(want)))
			}
			for _, name := range slices.Sorted(maps.Keys(want)) {
				if !reflect.DeepEqual(got[name], want[name]) {
					t.Errorf("%s\nHelm:\n%s\nkustomize:\n%s", name, text(got[name]), text(want[name]))
				}
				delete(got, name)
			}
			if len(got) > 0 {
				t.Errorf("only Helm makes %v", slices.Sorted(maps.Keys(got)))
			}
		})
	}
}

func text(tree any) string {
	made, err := yaml.Marshal(tree)
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(made)
}

func TestTheChartsObjectsFitTogether(t *testing.T) {
	for name, values := range map[string]string{
		"least":      "",
		"everything": everythingOn,
		"own secrets": `{secret: {existing: "", databaseURL: "postgres://nodes@a/b", redisURL: "redis://c", replicaURL: "postgres://d"},
			migrate: {secret: {existing: "", databaseURL: "postgres://owner@a/b"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := decoded(t, mustRender(t, "listedge", leastValues, values))
			c.fits(t)
			for _, d := range c.deployments {
				for _, from := range d.Spec.Template.Spec.Containers[0].EnvFrom {
					if made := from.SecretRef != nil && c.secrets[from.SecretRef.Name] != nil; from.SecretRef != nil && made != (name == "own secrets") {
						t.Errorf("the nodes' secret %s is made: %v", from.SecretRef.Name, made)
					}
				}
			}
			for _, s := range c.secrets {
				role, command := "nodes", []string{"serve"}
				if strings.HasSuffix(s.Name, "-migrate") {
					role, command = "owner", []string{"migrate", "up"}
				}
				if url := s.StringData["LISTEDGE_DATABASE_URL"]; !strings.Contains(url, role) {
					t.Errorf("secret %s has %s", s.Name, url)
				}
				checkSettings(t, s.Name, slices.Sorted(maps.Keys(s.StringData)), command...)
			}
		})
	}
}

// What would install a fleet that does not work, or a value that is not read, is
// refused before anything is made.
func TestTheChartRefusesWhatCannotWork(t *testing.T) {
	for _, c := range []struct{ values, says string }{
		{"trustedProxies: null", "set trustedProxies"},
		{"trustedProxies: [my-ingress]", "trustedProxies"},
		{"secret: {existing: ''}", "set secret.existing"},
		{"secret: {existing: '', databaseURL: 'postgres://a/b'}", "secret.redisURL"},
		{"migrate: {secret: {existing: ''}}", "set migrate.secret.existing"},
		{"replicaCount: 4", "replicaCount"},
		{"settings: {LISTEDGE_DATABASE_CONNECTIONS: 8}", "string"},
		{"settings: {LISTEDGE_DATABASE_URL: 'postgres://a/b'}", "LISTEDGE_DATABASE_URL"},
		{"image: {digest: latest}", "image"},
	} {
		_, err := rendered(t, "listedge", chartValues(t, leastValues, c.values))
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.values, err)
		}
	}
}

// Each value changes what it names.
func TestTheChartsValues(t *testing.T) {
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	c := decoded(t, mustRender(t, "listedge", leastValues, `
trustedProxies: []
image: {repository: registry.example/listedge, digest: "`+digest+`"}
autoscaling: {enabled: false}
replicas: 5
podDisruptionBudget: {enabled: false}
networkPolicy: {enabled: false}
migrate: {enabled: false}
settings: {OTEL_EXPORTER_OTLP_ENDPOINT: "http://collector:4318"}
topologySpread: {keys: [kubernetes.io/hostname], whenUnsatisfiable: DoNotSchedule}
`))
	node := c.deployments["listedge"]
	if image := node.Spec.Template.Spec.Containers[0].Image; image != "registry.example/listedge@"+digest {
		t.Errorf("the image is %s", image)
	}
	if len(c.scalers)+len(c.budgets)+len(c.networks)+len(c.jobs) > 0 || *node.Spec.Replicas != 5 {
		t.Error("what is switched off is made")
	}
	if settings := c.configs["listedge"].Data; settings["OTEL_EXPORTER_OTLP_ENDPOINT"] != "http://collector:4318" || settings["LISTEDGE_LOG_FORMAT"] != "json" {
		t.Errorf("the settings are %v", settings)
	}
	if proxies, set := c.configs["listedge"].Data["LISTEDGE_TRUSTED_PROXIES"]; proxies != "" || !set {
		t.Errorf("[] trusts %q", proxies)
	}
	if spread := node.Spec.Template.Spec.TopologySpreadConstraints; len(spread) != 1 || spread[0].WhenUnsatisfiable != "DoNotSchedule" {
		t.Errorf("nodes are spread by %v", spread)
	}
	other := decoded(t, mustRender(t, "other", leastValues)).deployments["other-listedge"]
	if other == nil || selects(t, node.Spec.Selector, other.Spec.Template.Labels) {
		t.Error("two releases in a namespace share their nodes")
	}
	again := decoded(t, mustRender(t, "listedge", leastValues, "settings: {LISTEDGE_DRAIN: 11s}")).deployments["listedge"]
	before := decoded(t, mustRender(t, "listedge", leastValues)).deployments["listedge"]
	if sum := "checksum/settings"; again.Spec.Template.Annotations[sum] == before.Spec.Template.Annotations[sum] {
		t.Error("a changed setting restarts no node")
	}
}
