package deploy_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// commandsOfKubernetes are the sections' commands as somebody types them in the root of
// the repository, each with its arguments. Programs that need a cluster only note them.
func commandsOfKubernetes(t *testing.T, here string, sections ...string) (commands [][]string) {
	t.Helper()
	script := "set -eu\n"
	for _, section := range sections {
		script += blockOf(t, "../docs/KUBERNETES.md", section)
	}
	log := filepath.Join(here, "log")
	// Arguments end in a character that none has.
	note := "#!/bin/sh\nprintf '%s\\037' \"${0##*/}\" \"$@\" >>'" + log + "'\necho >>'" + log + "'\n" +
		"case \"$*\" in *RepoDigests*) echo 'registry.example/listedge@sha256:" + strings.Repeat("ab", 32) + "' ;; esac\n"
	tools := filepath.Join(here, "tools")
	must(os.Mkdir(tools, 0o755))
	for _, name := range []string{"kubectl", "helm", "docker", "make", "kind"} {
		must(os.WriteFile(filepath.Join(tools, name), []byte(note), 0o755))
	}
	deploy := must1(filepath.Abs("."))
	must(os.Symlink(deploy, filepath.Join(here, "deploy")))
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = here
	cmd.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"), "REGISTRY=registry.example",
		"OWNER_URL=postgres://owner@a/b", "NODE_URL=postgres://nodes@a/b", "REDIS_URL=redis://c")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s\n%s", err, said, script)
	}
	noted := must1(os.ReadFile(log))
	for line := range strings.Lines(string(noted)) {
		commands = append(commands, strings.Split(strings.TrimSuffix(line, "\037\n"), "\037"))
	}
	return commands
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

// rehearsal is a cluster as far as commands can be wrong about it.
type rehearsal struct {
	here    string
	spaces  map[string]bool
	secrets map[string][]string // their names of variables
	cluster *cluster            // what was applied
}

// run carries one command out.
func (r *rehearsal) run(t *testing.T, command []string) {
	t.Helper()
	line := strings.Join(command, " ")
	after := func(flag string) string {
		if i := slices.Index(command, flag); i >= 0 {
			return command[i+1]
		}
		return ""
	}
	if space := after("-n") + after("--namespace"); space != "" && !r.spaces[space] {
		t.Errorf("%s: there is no namespace yet", line)
	}
	switch {
	case command[0] == "helm":
		values := must1(os.ReadFile(filepath.Join(r.here, after("--values"))))
		if !slices.Contains(command, "deploy/helm") {
			t.Errorf("%s: the chart is elsewhere", line)
		}
		r.apply(t, mustRender(t, "listedge", string(values)))
	case command[0] != "kubectl":
	case strings.HasPrefix(line, "kubectl create namespace "):
		r.spaces[after("namespace")] = true
	case strings.HasPrefix(line, "kubectl label namespace "):
		if !r.spaces[after("namespace")] {
			t.Errorf("%s: there is no namespace yet", line)
		}
	case strings.Contains(line, " create secret generic "):
		name := after("generic")
		for _, argument := range command {
			if literal, ok := strings.CutPrefix(argument, "--from-literal="); ok {
				variable, value, _ := strings.Cut(literal, "=")
				if value == "" {
					t.Errorf("%s: %s is empty", line, variable)
				}
				r.secrets[name] = append(r.secrets[name], variable)
			}
		}
	case strings.Contains(line, " rollout status "), strings.Contains(line, " exec "):
		what := regexp.MustCompile(`(deploy|deployment)/([a-z-]+)`).FindStringSubmatch(line)
		if r.cluster == nil || what == nil || r.cluster.deployments[what[2]] == nil {
			t.Errorf("%s: it is not there", line)
		}
		if _, program, ok := strings.Cut(line, " -- /listedge "); ok {
			checkSettings(t, line, nil, strings.Fields(program)...)
		}
	default:
		t.Errorf("the test does not know what this does: %s", line)
	}
}

// apply finds that every pod has its secrets and the image with its digest, and that
// the proxies are set.
func (r *rehearsal) apply(t *testing.T, objects []manifest) {
	t.Helper()
	r.cluster = decoded(t, objects)
	for _, o := range objects {
		var head struct{ Metadata struct{ Namespace string } }
		if err := yaml.Unmarshal([]byte(o.text), &head); err != nil || !r.spaces[head.Metadata.Namespace] {
			t.Errorf("%s %s is in namespace %q (%v)", o.kind, o.name, head.Metadata.Namespace, err)
		}
	}
	pods := map[string]core.PodTemplateSpec{}
	for name, d := range r.cluster.deployments {
		pods[name] = d.Spec.Template
	}
	for name, j := range r.cluster.jobs {
		pods[name] = j.Spec.Template
	}
	if len(pods) != 2 {
		t.Errorf("pods of %v", slices.Sorted(maps.Keys(pods)))
	}
	for name, pod := range pods {
		container := pod.Spec.Containers[0]
		if image := "registry.example/listedge@sha256:" + strings.Repeat("ab", 32); container.Image != image {
			t.Errorf("%s has image %s", name, container.Image)
		}
		wants := secretOf(t, &pod)
		if has := slices.Sorted(slices.Values(r.secrets[wants.name])); !slices.Equal(has, wants.keys) {
			t.Errorf("%s wants %v, and was made %v", name, wants, r.secrets)
		}
		checkSettings(t, name, wants.keys, container.Args...)
	}
	for _, config := range r.cluster.configs {
		if proxies, ok := config.Data["LISTEDGE_TRUSTED_PROXIES"]; ok && proxies != "10.244.0.0/16" {
			t.Errorf("proxies %q are trusted", proxies)
		}
	}
}

// The commands of docs/KUBERNETES.md work from an empty cluster, in their order.
func TestKubernetesDocumentIsRightToTheLetter(t *testing.T) {
	r := &rehearsal{here: t.TempDir(), spaces: map[string]bool{}, secrets: map[string][]string{}}
	commands := commandsOfKubernetes(t, r.here, "The image", "Namespace and secrets", "Install", "Afterwards")
	for _, c := range commands {
		r.run(t, c)
	}
	if r.cluster == nil {
		t.Errorf("nothing is applied by %v", commands)
	}
}
