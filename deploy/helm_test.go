package deploy_test

import (
	"bytes"
	"encoding/json"
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
	"sync"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/releaseutil"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

const chartFolder = "helm"

// leastValues are the values without which the chart makes nothing.
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

// chartLoaded reads the chart once.
var chartLoaded = sync.OnceValue(func() *chart.Chart {
	log.SetOutput(io.Discard) // it logs each symbolic link
	defer log.SetOutput(os.Stderr)
	return must1(loader.Load(chartFolder))
})

// rendered is what `helm template RELEASE deploy/helm --namespace listedge` makes.
func rendered(t *testing.T, release string, values map[string]any) (objects []manifest, err error) {
	t.Helper()
	chart := chartLoaded()
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
service: {type: LoadBalancer, externalTrafficPolicy: Local, annotations: {a: b}}
ingress: {enabled: true, className: nginx, annotations: {a: b}, hosts: [api.example.com, "*.example.com"], paths: [/v1/items, /v1/contacts],
  tls: [{hosts: [api.example.com], secretName: tls}]}
extraEnv: [{name: LISTEDGE_NODE_ID, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
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

// checkCopies finds that the cluster has the rules and the dashboard of this folder.
func (c *cluster) checkCopies(t *testing.T) {
	t.Helper()
	runbook := "https://github.com/listedge/listedge/blob/main/deploy/RUNBOOK.md"
	if version := versionInSource(t); !strings.HasSuffix(version, "-dev") {
		runbook = strings.Replace(runbook, "/main/", "/v"+version+"/", 1)
	}
	// Its Prometheus serves no files, and a link is opened outside of the cluster.
	var want monitoring.PrometheusRuleSpec
	must(yaml.UnmarshalStrict([]byte(replaced(t, rulesFile, "{{ $externalURL }}/user/runbook.html", runbook)), &want))
	for name, r := range c.rules {
		if !reflect.DeepEqual(r.Spec, want) {
			t.Errorf("the rules of %s are not those of %s, with links to %s", name, rulesFile, runbook)
		}
	}
	for name, config := range c.configs {
		if strings.HasSuffix(name, "-dashboard") && config.Data["listedge.json"] != strings.TrimSuffix(replaced(t, dashboardFile), "\n") {
			t.Errorf("%s is not %s", name, dashboardFile)
		}
	}
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
			wants := secretOf(t, &c.deployments["listedge"].Spec.Template)
			made := c.secrets[wants.name]
			if (made != nil) != (name == "own secrets") || made != nil && !slices.Equal(slices.Sorted(maps.Keys(made.StringData)), wants.keys) {
				t.Errorf("the nodes want %v and get %v", wants, made)
			}
			c.checkCopies(t)
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
	for says, all := range map[string]string{ // | is between sets of values
		"set trustedProxies": "trustedProxies: null",
		"/trustedProxies": "trustedProxies: [my-ingress] | trustedProxies: [10.0.0.7] | trustedProxies: [10.0.0.0/99] | " +
			"trustedProxies: [300.0.0.0/8] | trustedProxies: ['fd00::/129'] | trustedProxies: ['']",
		"set secret.existing":            "secret: {existing: ''} | secret: {existing: '', databaseURL: 'postgres://a/b'}",
		"/secret/existing":               "secret: {existing: My_Secret}",
		"/secret/keys":                   "secret: {keys: [LISTEDGE_REDIS_URL]} | secret: {keys: [LISTEDGE_DATABASE_URL, DATABASE_URL]}",
		"set migrate.secret.existing":    "migrate: {secret: {existing: ''}}",
		"/migrate/activeDeadlineSeconds": "migrate: {activeDeadlineSeconds: 0}",
		"replicaCount":                   "replicaCount: 4",
		"LISTEDGE_DATABASE_CONNECTIONS":  "settings: {LISTEDGE_DATABASE_CONNECTIONS: 8}",
		"LISTEDGE_DATABASE_URL":          "settings: {LISTEDGE_DATABASE_URL: 'postgres://a/b'}",
		"LISTEDGE_CACHE_MEMROY":          "settings: {LISTEDGE_CACHE_MEMROY: 1GiB}",
		"LISTEDGE_NODE_ID":               "settings: {LISTEDGE_NODE_ID: one}", // all nodes would have it
		"LISTEDGE_DRAIN'":                "settings: {LISTEDGE_DRAIN: soon}",
		"terminationGracePeriodSeconds": "settings: {LISTEDGE_DRAIN: 20500ms} | terminationGracePeriodSeconds: 19 | " +
			"{terminationGracePeriodSeconds: 12, settings: {LISTEDGE_DRAIN: null}}",
		"/image": "image: {digest: latest} | image: {tag: 'v1 : x'} | image: {repository: \"a'b\"}",
		"verride'": "nameOverride: My_Name | fullnameOverride: Listedge_X | fullnameOverride: 'a b: c' | " +
			"fullnameOverride: '1st'", // no name of a Service
		"maxReplicas":                    "autoscaling: {minReplicas: 13}",
		"/autoscaling/requestsPerSecond": "autoscaling: {requestsPerSecond: many}",
		"/maxUnavailable":                "podDisruptionBudget: {maxUnavailable: one}",
		"/service/":                      "service: {port: 70000} | service: {externalTrafficPolicy: local}",
		"/networkPolicy/":                "networkPolicy: {egressPorts: [0]} | networkPolicy: {monitoringNamespace: ''}",
		"/ingress/":                      "ingress: {enabled: true, paths: [v1]} | ingress: {enabled: true, hosts: ['api.example.com/v1']}",
		"memroy":                         "resources: {limits: {memroy: 1Gi}}",
		"/resources": "resources: {limit: {memory: 1Gi}} | resources: {limits: {memory: 1 Gi}} | " +
			"migrate: {resources: {limits: {memory: much}}}",
		"/goMemLimit":                  "goMemLimit: 900Mi",
		"/serviceMonitor/interval":     "serviceMonitor: {interval: soon}",
		"serviceMonitor.scrapeTimeout": "serviceMonitor: {enabled: true, interval: 4s}",
		"/prometheusRule/runbookURL":   "prometheusRule: {runbookURL: runbook}",
		"/extraEnv":                    "extraEnv: [{value: a}]",
	} {
		for values := range strings.SplitSeq(all, " | ") {
			t.Run(values, func(t *testing.T) {
				if _, err := rendered(t, "listedge", chartValues(t, leastValues, values)); err == nil || !strings.Contains(err.Error(), says) {
					t.Error(err)
				}
			})
		}
	}
}

// The settings that a value may have are those of a node but for those that the chart gives.
func TestTheChartKnowsTheSettings(t *testing.T) {
	var want []string
	for _, m := range regexp.MustCompile(`\$(LISTEDGE_\w+)`).FindAllStringSubmatch(listedge(t, nil, "serve", "--help"), -1) {
		if !regexp.MustCompile(`_(FILE|URL|LISTEN|LISTS|TRUSTED_PROXIES|NODE_ID)$`).MatchString(m[1]) {
			want = append(want, m[1])
		}
	}
	if got := find(t, chartFolder+"/values.schema.json", `(?m)^ +"(LISTEDGE_\w+)",?$`); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("the chart knows %v, the program %v", got, want)
	}
}

// Values that YAML would take for something else stay names, and what is found by them is found.
func TestTheChartQuotesNames(t *testing.T) {
	for _, c := range []struct{ release, values string }{
		{"123", "nameOverride: '1e3'"},
		{"catalog", "nameOverride: catalog"},
		{"true", "nameOverride: 'null'"},
		{"a", "{nameOverride: '0x1', fullnameOverride: 'null', " +
			"secret: {existing: '1.5'}, serviceAccount: {existing: 'true'}, priorityClassName: 'no'}"},
		{strings.Repeat("a", 53), "nameOverride: " + strings.Repeat("b", 63)},
		{"listedge", `{podAnnotations: {a: "b: 'c'"}, podLabels: {a: '1'}, nodeSelector: {a: 'true'},
			topologySpread: {keys: ['1', 'true']}, serviceMonitor: {labels: {a: '2'}}}`},
		{"listedge", "goMemLimit: ''"},
		{"listedge", `{settings: {LISTEDGE_NO_DOCS: 'true'}, goMemLimit: '1000000000', migrate: {secret: {existing: '', databaseURL: 'postgres://a: b'}},
			secret: {existing: '', databaseURL: 'postgres://c: d', redisURL: 'redis://e: f'}}`},
		{"listedge", "image: {tag: '1.10'}"},
	} {
		t.Run(c.release+" "+c.values, func(t *testing.T) {
			made := decoded(t, mustRender(t, c.release, leastValues, everythingOn, c.values))
			for name, node := range made.deployments {
				made.checkSelectors(t, node)
				made.checkMonitor(t)
				for _, variable := range node.Spec.Template.Spec.Containers[0].Env {
					if variable.Value == "" && variable.ValueFrom == nil {
						t.Errorf("%s has an empty %s", name, variable.Name)
					}
				}
			}
			for _, route := range made.ingresses {
				for _, rule := range route.Spec.Rules {
					backend := rule.HTTP.Paths[0].Backend.Service
					if service := made.services[backend.Name]; service == nil || service.Spec.Ports[0].Name != backend.Port.Name {
						t.Errorf("%s leads to %v", rule.Host, backend)
					}
				}
			}
			if len(made.deployments)+len(made.ingresses) != 2 {
				t.Errorf("%d deployments, %d routes", len(made.deployments), len(made.ingresses))
			}
		})
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

// A description of lists reaches the nodes and the migration before them as it is: the order of its lines counts.
func TestTheChartGivesNodesTheirLists(t *testing.T) {
	const text = "lists:\n  products: {table: '\"My shop\".products', key: id} # {{ of the shop }}\n"
	render := func(lists string) (*cluster, map[string]core.PodTemplateSpec) {
		c := decoded(t, must1(rendered(t, "listedge", chartValues(t, leastValues, "volumes: [{name: ca, configMap: {name: ca}}]", lists))))
		return c, map[string]core.PodTemplateSpec{"serve": c.deployments["listedge"].Spec.Template, "migrate up": c.jobs["listedge-migrate"].Spec.Template}
	}
	described := func(text string) string { return string(must1(yaml.Marshal(map[string]string{"lists": text}))) }
	c, pods := render(described(text))
	for command, pod := range pods {
		t.Run(command, func(t *testing.T) {
			file, container := checkPod(t, c, command, &pod)["LISTEDGE_LISTS"], pod.Spec.Containers[0]
			mount := slices.IndexFunc(container.VolumeMounts, func(m core.VolumeMount) bool { return m.MountPath == path.Dir(file) && m.ReadOnly })
			if mount < 0 {
				t.Fatalf("%s is not mounted: %v", file, container.VolumeMounts)
			}
			volume := slices.IndexFunc(pod.Spec.Volumes, func(v core.Volume) bool { return v.Name == container.VolumeMounts[mount].Name })
			config := c.configs[pod.Spec.Volumes[volume].ConfigMap.Name]
			if config == nil || config.Data[path.Base(file)] != text {
				t.Errorf("%s is %v", file, config)
			}
			isHook := config != nil && config.Annotations["helm.sh/hook"] == "pre-install,pre-upgrade" && config.Annotations["helm.sh/hook-weight"] == "-1"
			if isHook != (command == "migrate up") {
				t.Errorf("it is there %v", config.Annotations)
			}
		})
	}
	_, others := render(described(text + "#"))
	c, none := render("")
	if sum := "checksum/settings"; pods["serve"].Annotations[sum] == others["serve"].Annotations[sum] {
		t.Error("a changed description restarts no node")
	}
	for command, pod := range none {
		if file, set := checkPod(t, c, command, &pod)["LISTEDGE_LISTS"]; set || len(pod.Spec.Volumes) != len(pods[command].Spec.Volumes)-1 {
			t.Errorf("%s has %q without a description, and %v", command, file, pod.Spec.Volumes)
		}
	}
}

// cluster is what the chart would make, by kind and then by name.
type cluster struct {
	deployments map[string]*apps.Deployment
	jobs        map[string]*batch.Job
	services    map[string]*core.Service
	accounts    map[string]*core.ServiceAccount
	configs     map[string]*core.ConfigMap
	secrets     map[string]*core.Secret
	scalers     map[string]*autoscaling.HorizontalPodAutoscaler
	budgets     map[string]*policy.PodDisruptionBudget
	networks    map[string]*networking.NetworkPolicy
	ingresses   map[string]*networking.Ingress
	monitors    map[string]*monitoring.ServiceMonitor
	rules       map[string]*monitoring.PrometheusRule
}

// in reads an object strictly into the type of its kind: as Kubernetes, and unlike a YAML
// library that knows the type, it takes no number for a string.
func in[T any](into *map[string]*T) func(text []byte, name string) error {
	return func(text []byte, name string) error {
		object := new(T)
		if *into == nil {
			*into = map[string]*T{}
		}
		if (*into)[name] != nil {
			return fmt.Errorf("there are two")
		}
		(*into)[name] = object
		asJSON, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			return err
		}
		strict := json.NewDecoder(bytes.NewReader(asJSON))
		strict.DisallowUnknownFields()
		return strict.Decode(object)
	}
}

// manifest is an object that would be made, as text.
type manifest struct{ kind, name, text string }

// decoded reads objects, each strictly into the type of its kind.
func decoded(t *testing.T, objects []manifest) *cluster {
	t.Helper()
	c := &cluster{}
	kinds := map[string]func([]byte, string) error{
		"apps/v1 Deployment": in(&c.deployments), "batch/v1 Job": in(&c.jobs), "v1 Service": in(&c.services), "v1 ServiceAccount": in(&c.accounts),
		"v1 ConfigMap": in(&c.configs), "v1 Secret": in(&c.secrets),
		"autoscaling/v2 HorizontalPodAutoscaler": in(&c.scalers), "policy/v1 PodDisruptionBudget": in(&c.budgets),
		"networking.k8s.io/v1 NetworkPolicy": in(&c.networks), "networking.k8s.io/v1 Ingress": in(&c.ingresses),
		"monitoring.coreos.com/v1 ServiceMonitor": in(&c.monitors), "monitoring.coreos.com/v1 PrometheusRule": in(&c.rules),
	}
	for _, o := range objects {
		if decode := kinds[o.kind]; decode == nil {
			t.Errorf("%s %s is of a kind that the test does not know", o.kind, o.name)
		} else if err := decode([]byte(o.text), o.name); err != nil {
			t.Errorf("%s %s: %v", o.kind, o.name, err)
		}
	}
	return c
}

// secret is what a pod is given as files.
type secret struct {
	name string
	keys []string
}

func secretOf(t *testing.T, template *core.PodTemplateSpec) (s secret) {
	t.Helper()
	volume, mount := template.Spec.Volumes[0], template.Spec.Containers[0].VolumeMounts[0]
	if volume.Secret == nil || mount.Name != volume.Name || !mount.ReadOnly {
		t.Fatalf("%s is mounted as %v", volume.Name, mount)
	}
	s.name = volume.Secret.SecretName
	for _, e := range template.Spec.Containers[0].Env {
		if name, isFile := strings.CutSuffix(e.Name, "_FILE"); isFile {
			if s.keys = append(s.keys, name); e.Value != mount.MountPath+"/"+name {
				t.Errorf("%s=%s is elsewhere", e.Name, e.Value)
			}
		}
	}
	return s
}

// checkSettings finds that the program knows the command, and each environment
// variable that is named like one of its own.
func checkSettings(t *testing.T, who string, names []string, command ...string) {
	t.Helper()
	help := listedge(t, nil, append(slices.Clone(command), "--help")...)
	known := regexp.MustCompile(`\$(LISTEDGE_\w+)`).FindAllStringSubmatch(help, -1)
	if len(known) == 0 {
		t.Fatalf("%s: listedge %v takes no settings", who, command)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "LISTEDGE_") && !slices.ContainsFunc(known, func(m []string) bool { return m[1] == name }) {
			t.Errorf("%s: listedge %v knows no %s", who, command, name)
		}
	}
}
