package deploy_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// fits checks that all objects of the cluster that refer to one another agree.
func (c *cluster) fits(t *testing.T) {
	t.Helper()
	node := c.deployments["listedge"]
	if node == nil {
		t.Fatal("no node is deployed")
	}
	c.checkSelectors(t, node)
	c.checkNode(t, node)
	for _, job := range c.jobs {
		checkPod(t, c, job.Name, &job.Spec.Template)
		// Kubernetes removes the logs of a Job that is too old, and of a pod whose container is started again.
		if s := job.Spec; s.Template.Spec.RestartPolicy != core.RestartPolicyNever || s.TTLSecondsAfterFinished != nil || s.ActiveDeadlineSeconds == nil {
			t.Errorf("%s leaves no log, or does not end", job.Name)
		}
	}
	c.checkMonitor(t)
	c.checkScaler(t)
}

// selects says whether a selector finds pods with these labels. An empty one
// finds all.
func selects(t *testing.T, s *meta.LabelSelector, l map[string]string) bool {
	t.Helper()
	selector := must1(meta.LabelSelectorAsSelector(s))
	return selector.Matches(labels.Set(l))
}

// checkSelectors finds that whatever selects nodes does so, and selects nothing
// else.
func (c *cluster) checkSelectors(t *testing.T, node *apps.Deployment) {
	t.Helper()
	pods := node.Spec.Template.Labels
	by := map[string]*meta.LabelSelector{"the deployment": node.Spec.Selector}
	for name, s := range c.services {
		by["service "+name] = &meta.LabelSelector{MatchLabels: s.Spec.Selector}
		for _, p := range s.Spec.Ports {
			if portOf(node, p.TargetPort) == 0 {
				t.Errorf("service %s leads to port %s, which a node has not", name, p.TargetPort.String())
			}
		}
	}
	for name, b := range c.budgets {
		by["budget "+name] = b.Spec.Selector
	}
	for i, s := range node.Spec.Template.Spec.TopologySpreadConstraints {
		by[fmt.Sprint("spread ", i)] = s.LabelSelector
	}
	if len(by) < 6 {
		t.Errorf("only %d selectors", len(by))
	}
	for what, s := range by {
		if len(s.MatchLabels) == 0 || !selects(t, s, pods) {
			t.Errorf("%s does not select the nodes", what)
		}
		for _, job := range c.jobs {
			if selects(t, s, job.Spec.Template.Labels) {
				t.Errorf("%s selects %s as well", what, job.Name)
			}
		}
	}
	if len(c.networks) == 0 {
		t.Error("no network policy")
	}
	for name, n := range c.networks {
		if !selects(t, &n.Spec.PodSelector, pods) {
			t.Errorf("network policy %s is not for the nodes", name)
		}
		for _, port := range []int32{5432, 6379, 26379, 4318} { // Postgres, Redis, Sentinel, OTLP over HTTP
			if !slices.ContainsFunc(n.Spec.Egress, func(e networking.NetworkPolicyEgressRule) bool {
				return len(e.To) == 0 && slices.ContainsFunc(e.Ports, func(p networking.NetworkPolicyPort) bool { return p.Port.IntVal == port })
			}) {
				t.Errorf("network policy %s lets nobody out to port %d", name, port)
			}
		}
		for _, rule := range n.Spec.Ingress {
			for _, p := range rule.Ports {
				port := portOf(node, *p.Port)
				if port == 0 {
					t.Errorf("network policy %s admits to port %s, which a node has not", name, p.Port.String())
				}
				if port == 9090 && len(rule.From) == 0 {
					t.Errorf("network policy %s admits everybody to the admin listener", name)
				}
			}
		}
	}
}

// portOf is the number of a port of a node, by name or number; 0 = none.
func portOf(node *apps.Deployment, port intstr.IntOrString) int32 {
	for _, p := range node.Spec.Template.Spec.Containers[0].Ports {
		if p.Name == port.StrVal && port.Type == intstr.String || p.ContainerPort == port.IntVal && port.Type == intstr.Int {
			return p.ContainerPort
		}
	}
	return 0
}

// checkNode checks a node's environment, probes and times.
func (c *cluster) checkNode(t *testing.T, node *apps.Deployment) {
	t.Helper()
	settings := checkPod(t, c, "node", &node.Spec.Template)
	pod, container := node.Spec.Template.Spec, node.Spec.Template.Spec.Containers[0]
	if node.Spec.Replicas != nil {
		t.Error("a number of replicas would undo the autoscaler's at each deployment")
	}
	for probe, path := range map[*core.Probe]string{container.StartupProbe: "/livez", container.LivenessProbe: "/livez", container.ReadinessProbe: "/readyz"} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path || portOf(node, probe.HTTPGet.Port) != 9090 {
			t.Errorf("no probe asks %s of the admin listener", path)
		}
	}
	if !strings.HasSuffix(settings["LISTEDGE_ADMIN_LISTEN"], ":9090") || strings.HasPrefix(settings["LISTEDGE_ADMIN_LISTEN"], "127.") {
		t.Errorf("probes do not reach the admin listener at %s", settings["LISTEDGE_ADMIN_LISTEN"])
	}
	if port := portOf(node, intstr.FromString("http")); port != 8080 { // what --listen is by default
		t.Errorf("clients are sent to port %d", port)
	}
	drain := must1(time.ParseDuration(settings["LISTEDGE_DRAIN"]))
	stop := stopTimeout(t)
	noticed := time.Duration(container.ReadinessProbe.PeriodSeconds*container.ReadinessProbe.FailureThreshold) * time.Second
	if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; grace < drain+stop+5*time.Second {
		t.Errorf("%s are too short for a drain of %s and a stop of %s", grace, drain, stop)
	}
	if drain < noticed+2*time.Second {
		t.Errorf("a drain of %s is over soon after it is noticed, in %s", drain, noticed)
	}
	memory := container.Resources.Limits.Memory().Value()
	var cache int64
	must1(fmt.Sscanf(settings["LISTEDGE_CACHE_MEMORY"], "%dMiB", &cache))
	if cache<<20 > memory*2/3 {
		t.Errorf("%d MiB of pages do not fit into a container of %d MiB", cache, memory>>20)
	}
	spread := map[string]bool{}
	for _, s := range pod.TopologySpreadConstraints {
		spread[s.TopologyKey] = true
	}
	if !spread[core.LabelTopologyZone] || !spread[core.LabelHostname] {
		t.Errorf("nodes are spread over %v", spread)
	}
	if account := c.accounts[pod.ServiceAccountName]; account == nil {
		t.Errorf("there is no service account %s", pod.ServiceAccountName)
	}
}

// stopTimeout is how long a node takes at most to stop after the drain.
func stopTimeout(t *testing.T) time.Duration {
	t.Helper()
	seconds := must1(time.ParseDuration(find(t, "../cmd/listedge/node/node.go", `StopTimeout += (\d+) \* time\.Second`)[0] + "s"))
	return seconds
}

// checkPod looks at what is the same for a node and for a job, and returns the
// settings that are known.
func checkPod(t *testing.T, c *cluster, name string, template *core.PodTemplateSpec) map[string]string {
	t.Helper()
	pod, container := template.Spec, template.Spec.Containers[0]
	yes := func(b *bool) bool { return b != nil && *b }
	no := func(b *bool) bool { return b != nil && !*b }
	s := container.SecurityContext
	switch {
	case !yes(pod.SecurityContext.RunAsNonRoot) || pod.SecurityContext.RunAsUser == nil || *pod.SecurityContext.RunAsUser == 0:
		t.Errorf("%s may run as root", name)
	case !yes(s.ReadOnlyRootFilesystem) || !no(s.AllowPrivilegeEscalation) || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}):
		t.Errorf("%s may do more than it needs", name)
	case pod.SecurityContext.SeccompProfile == nil || pod.SecurityContext.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault:
		t.Errorf("%s may make every system call", name)
	case !no(pod.AutomountServiceAccountToken):
		t.Errorf("%s is given a token that it does not need", name)
	case container.ImagePullPolicy != core.PullIfNotPresent:
		t.Errorf("%s is pulled %s: an image that kind has loaded cannot be", name, container.ImagePullPolicy)
	case container.Resources.Limits.Memory().IsZero() || container.Resources.Requests.Cpu().IsZero():
		t.Errorf("%s has no resources", name)
	}
	if want := find(t, "Dockerfile", `USER (\d+):`)[0]; fmt.Sprint(*pod.SecurityContext.RunAsUser) != want {
		t.Errorf("%s runs as %d, the image as %s", name, *pod.SecurityContext.RunAsUser, want)
	}
	settings := map[string]string{}
	for _, from := range container.EnvFrom {
		if from.ConfigMapRef == nil {
			t.Errorf("%s has a secret in its environment", name)
			continue
		}
		config := c.configs[from.ConfigMapRef.Name]
		if config == nil {
			t.Fatalf("%s wants a ConfigMap %s, which is not there", name, from.ConfigMapRef.Name)
		}
		maps.Copy(settings, config.Data)
	}
	for _, e := range container.Env {
		settings[e.Name] = e.Value
	}
	if len(secretOf(t, template).keys) == 0 {
		t.Errorf("%s is given no secret", name)
	}
	checkSettings(t, name, slices.Sorted(maps.Keys(settings)), container.Args...)
	return settings
}

// checkMonitor finds that what is scraped is there.
func (c *cluster) checkMonitor(t *testing.T) {
	t.Helper()
	for name, m := range c.monitors {
		watched := 0
		for _, s := range c.services {
			if !selects(t, &m.Spec.Selector, s.Labels) {
				continue
			}
			watched++
			if job := regexp.MustCompile("^" + find(t, rulesFile, `absent\(up\{job=~"(.*)"\}\)`)[0] + "$"); !job.MatchString(s.Labels[m.Spec.JobLabel]) {
				t.Errorf("monitor %s calls the job %q", name, s.Labels[m.Spec.JobLabel])
			}
			for _, e := range m.Spec.Endpoints {
				if !slices.ContainsFunc(s.Spec.Ports, func(p core.ServicePort) bool { return p.Name == e.Port }) {
					t.Errorf("monitor %s asks port %s, which service %s has not", name, e.Port, s.Name)
				}
			}
		}
		if watched != 1 || m.Namespace == "" {
			t.Errorf("monitor %s, in namespace %q, watches %d services", name, m.Namespace, watched)
		}
	}
}

// checkScaler finds that the autoscaler scales the nodes, by metrics that exist.
func (c *cluster) checkScaler(t *testing.T) {
	t.Helper()
	scaler := c.scalers["listedge"]
	if scaler == nil || c.deployments[scaler.Spec.ScaleTargetRef.Name] == nil || scaler.Spec.ScaleTargetRef.Kind != "Deployment" {
		t.Fatal("nothing scales the nodes")
	}
	for _, b := range c.budgets {
		if int(*scaler.Spec.MinReplicas) <= b.Spec.MaxUnavailable.IntValue() {
			t.Error("the budget lets all nodes go at once")
		}
	}
	types := map[autoscaling.MetricSourceType]bool{}
	for _, m := range scaler.Spec.Metrics {
		types[m.Type] = true
		if m.Type == autoscaling.PodsMetricSourceType {
			checkAdapter(t, m.Pods.Metric.Name)
		}
	}
	if !types[autoscaling.ResourceMetricSourceType] || types[autoscaling.PodsMetricSourceType] != (len(c.monitors) > 0) {
		t.Errorf("the autoscaler looks at %v", types)
	}
}

// checkAdapter finds that prometheus-adapter makes the metric, from one that
// nodes export.
func checkAdapter(t *testing.T, metric string) {
	t.Helper()
	const file = "prometheus/adapter-values.yaml"
	if made := find(t, file, `as: (\w+)`); !slices.Equal(made, []string{metric}) {
		t.Errorf("the adapter makes %v, and not %s", made, metric)
	}
	series := find(t, file, `seriesQuery: '?(\w+)`)[0]
	query := strings.NewReplacer("<<.Series>>", series, "<<.LabelMatchers>>", `job="listedge"`, "<<.GroupBy>>",
		"instance").Replace(find(t, file, `metricsQuery: '?(.*?)'?\n`)[0])
	if err := export(t).judge(query); err != nil {
		t.Error(err)
	}
}

// The commands of docs/KUBERNETES.md work from an empty cluster, in their order, as somebody types them in the root of the
// repository. Programs that need a cluster only note how they were called.
func TestKubernetesDocumentIsRightToTheLetter(t *testing.T) {
	here, script := t.TempDir(), "set -eu\n"
	for _, section := range []string{"The image", "Namespace and secrets", "Install", "Afterwards"} {
		script += blockOf(t, "../docs/KUBERNETES.md", section)
	}
	log, tools := filepath.Join(here, "log"), filepath.Join(here, "tools")
	digest := "registry.example/listedge@sha256:" + strings.Repeat("ab", 32)
	must(os.Mkdir(tools, 0o755))
	for _, name := range []string{"kubectl", "helm", "docker", "make", "kind"} {
		must(os.WriteFile(filepath.Join(tools, name), []byte("#!/bin/sh\necho \"${0##*/} $*\" >>'"+log+"'\n"+
			"case \"$*\" in *RepoDigests*) echo '"+digest+"' ;; esac\n"), 0o755))
	}
	must(os.Symlink(must1(filepath.Abs(".")), filepath.Join(here, "deploy")))
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = here
	cmd.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"), "REGISTRY=registry.example",
		"OWNER_URL=postgres://owner@a/b", "NODE_URL=postgres://nodes@a/b", "REDIS_URL=redis://c")
	run(t, cmd)

	var made *cluster
	secrets := map[string][]string{} // their names of variables
	for line := range strings.Lines(string(must1(os.ReadFile(log)))) {
		line = strings.TrimSpace(line)
		called := func(pattern string) (found []string) {
			return regexp.MustCompile("^" + pattern).FindStringSubmatch(line)
		}
		switch {
		case called("(make|docker) ") != nil, called("kubectl (create|label) namespace listedge\\b") != nil:
		case called("kubectl -n listedge create secret generic (\\S+) ") != nil:
			for _, variable := range regexp.MustCompile(`--from-literal=(\w+)=\S`).FindAllStringSubmatch(line, -1) {
				name := called("kubectl -n listedge create secret generic (\\S+) ")[1]
				secrets[name] = append(secrets[name], variable[1])
			}
		case called("helm .* deploy/helm --namespace listedge --values (\\S+)$") != nil:
			made = decoded(t, mustRender(t, "listedge", replaced(t, filepath.Join(here, "fleet.yaml"))))
			made.hasWhatItWants(t, digest, secrets)
		case made == nil || called("kubectl -n listedge (rollout status|exec) (deploy|deployment)/listedge\\b") == nil:
			t.Errorf("the test does not know what this does, or it comes too early: %s", line)
		case strings.Contains(line, " -- /listedge "):
			_, program, _ := strings.Cut(line, " -- /listedge ")
			checkSettings(t, line, nil, strings.Fields(program)...)
		}
	}
	if made == nil {
		t.Error("nothing is applied")
	}
}

// hasWhatItWants finds that every pod has its secrets and the image, and that the proxies are set.
func (c *cluster) hasWhatItWants(t *testing.T, image string, secrets map[string][]string) {
	t.Helper()
	pods := map[string]core.PodTemplateSpec{}
	for name, d := range c.deployments {
		pods[name] = d.Spec.Template
	}
	for name, j := range c.jobs {
		pods[name] = j.Spec.Template
	}
	if len(pods) != 2 || c.configs["listedge"].Data["LISTEDGE_TRUSTED_PROXIES"] != "10.244.0.0/16" {
		t.Errorf("pods of %v; settings %v", slices.Sorted(maps.Keys(pods)), c.configs["listedge"].Data)
	}
	for name, pod := range pods {
		container, wants := pod.Spec.Containers[0], secretOf(t, &pod)
		if has := slices.Sorted(slices.Values(secrets[wants.name])); container.Image != image || !slices.Equal(has, wants.keys) {
			t.Errorf("%s has image %s; it wants %v, and was made %v", name, container.Image, wants, secrets)
		}
		checkSettings(t, name, wants.keys, container.Args...)
	}
}

// blockOf is the first block for the shell of a section.
func blockOf(t *testing.T, file, section string) string {
	t.Helper()
	text := replaced(t, file)
	_, text, found := strings.Cut(text, "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	_, text, block := strings.Cut(text, "```sh\n")
	text, _, ended := strings.Cut(text, "```\n")
	if !found || !block || !ended {
		t.Fatalf("%s has no block %q", file, section)
	}
	return text
}
