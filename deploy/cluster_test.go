package deploy_test

import (
	"fmt"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// cluster is what an overlay would make, by kind and then by name.
type cluster struct {
	deployments map[string]*apps.Deployment
	jobs        map[string]*batch.Job
	services    map[string]*core.Service
	accounts    map[string]*core.ServiceAccount
	configs     map[string]*core.ConfigMap
	secrets     map[string]*core.Secret
	spaces      map[string]*core.Namespace
	scalers     map[string]*autoscaling.HorizontalPodAutoscaler
	budgets     map[string]*policy.PodDisruptionBudget
	networks    map[string]*networking.NetworkPolicy
	ingresses   map[string]*networking.Ingress
	monitors    map[string]*monitoring.ServiceMonitor
	rules       map[string]*monitoring.PrometheusRule
}

// decode reads an object strictly into the type of its kind.
func decode[T any](text []byte, name string, into *map[string]*T) error {
	object := new(T)
	if *into == nil {
		*into = map[string]*T{}
	}
	if (*into)[name] != nil {
		return fmt.Errorf("there are two")
	}
	(*into)[name] = object
	return yaml.UnmarshalStrict(text, object)
}

// manifest is an object that would be made, as text.
type manifest struct{ kind, name, text string }

// built is what kustomize makes of a folder.
func built(t *testing.T, folder string) (objects []manifest) {
	t.Helper()
	made := must1(krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder))
	for _, r := range made.Resources() {
		text := must1(r.AsYAML())
		objects = append(objects, manifest{r.GetApiVersion() + " " + r.GetKind(), r.GetName(), string(text)})
	}
	return objects
}

// build runs kustomize and decodes what it made.
func build(t *testing.T, folder string) *cluster {
	t.Helper()
	return decoded(t, built(t, folder))
}

// decoded reads objects, each strictly into the type of its kind.
func decoded(t *testing.T, objects []manifest) *cluster {
	t.Helper()
	c := &cluster{}
	for _, o := range objects {
		var err error
		switch text, name := []byte(o.text), o.name; o.kind {
		case "apps/v1 Deployment":
			err = decode(text, name, &c.deployments)
		case "batch/v1 Job":
			err = decode(text, name, &c.jobs)
		case "v1 Service":
			err = decode(text, name, &c.services)
		case "v1 ServiceAccount":
			err = decode(text, name, &c.accounts)
		case "v1 ConfigMap":
			err = decode(text, name, &c.configs)
		case "v1 Secret":
			err = decode(text, name, &c.secrets)
		case "v1 Namespace":
			err = decode(text, name, &c.spaces)
		case "autoscaling/v2 HorizontalPodAutoscaler":
			err = decode(text, name, &c.scalers)
		case "policy/v1 PodDisruptionBudget":
			err = decode(text, name, &c.budgets)
		case "networking.k8s.io/v1 NetworkPolicy":
			err = decode(text, name, &c.networks)
		case "networking.k8s.io/v1 Ingress":
			err = decode(text, name, &c.ingresses)
		case "monitoring.coreos.com/v1 ServiceMonitor":
			err = decode(text, name, &c.monitors)
		case "monitoring.coreos.com/v1 PrometheusRule":
			err = decode(text, name, &c.rules)
		default:
			err = fmt.Errorf("of a kind that the test does not know")
		}
		if err != nil {
			t.Errorf("%s %s: %v", o.kind, o.name, err)
		}
	}
	return c
}
