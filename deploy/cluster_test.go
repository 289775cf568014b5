package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

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
