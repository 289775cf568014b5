package deploy_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const packageFile = "release/nfpm.yaml"

// packages is what the deb and the rpm package have. release_test.go looks at what is made of it.
type packages struct {
	Contents []struct{ Src, Dst, Type string }
	Scripts  map[string]string
}

func readPackages(t *testing.T) (p packages) {
	t.Helper()
	must(yaml.Unmarshal([]byte(replaced(t, packageFile)), &p))
	return p
}

const unitFile = "systemd/listedge.service"

// unit reads the settings of a unit; a name may be set several times.
func unit(t *testing.T) map[string][]string {
	t.Helper()
	settings := map[string][]string{}
	for line := range strings.Lines(replaced(t, unitFile)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			settings[name] = append(settings[name], value)
		}
	}
	return settings
}

// credentials are the files that systemd copies for the node, by the settings that name the copies.
func credentials(unit map[string][]string) map[string]string {
	files := map[string]string{}
	for _, loaded := range unit["LoadCredential"] {
		id, file, _ := strings.Cut(loaded, ":")
		for _, variable := range strings.Fields(unit["Environment"][0]) {
			if name, ok := strings.CutSuffix(variable, "=%d/"+id); ok {
				files[name] = file
			}
		}
	}
	return files
}

func TestThePackageHasWhatTheUnitNeeds(t *testing.T) {
	placed := map[string]string{}
	for _, c := range readPackages(t).Contents {
		placed[c.Dst] = c.Type
		if _, err := os.Stat(filepath.Join("..", c.Src)); err != nil && c.Dst != "/usr/bin/listedge" {
			t.Error(err)
		}
	}
	u := unit(t)
	for _, settings := range append(slices.Collect(maps.Values(credentials(u))), u["EnvironmentFile"][0]) {
		if placed[settings] != "config|noreplace" {
			t.Errorf("the unit reads %s, and the package has %v", settings, placed)
		}
	}
	// A bare name is looked up by systemd, in /usr/local/bin and in /usr/bin.
	if _, has := placed["/usr/bin/listedge"]; strings.Fields(u["ExecStart"][0])[0] != "listedge" || !has {
		t.Errorf("the unit starts %s, and the package has %v", u["ExecStart"], placed)
	}
}

// What a package does when it comes, is renewed and goes, as dpkg and rpm call it.
func TestThePackagesScripts(t *testing.T) {
	scripts := readPackages(t).Scripts
	for _, c := range []struct {
		script, args, did string
	}{
		{"postinstall", "configure", "daemon-reload"},
		{"postinstall", "configure 0.1.0", "daemon-reload --no-block try-restart listedge.service"},
		{"postinstall", "1", "daemon-reload"},
		{"postinstall", "2", "daemon-reload --no-block try-restart listedge.service"},
		{"preremove", "upgrade 0.3.0", ""},
		{"preremove", "1", ""},
		{"preremove", "remove", "disable --now listedge.service"},
		{"preremove", "0", "disable --now listedge.service"},
		{"postremove", "purge", "daemon-reload"},
		{"postremove", "upgrade 0.3.0", ""},
		{"postremove", "1", ""},
	} {
		for _, systemd := range []bool{true, false} {
			root := t.TempDir()
			tools := filepath.Join(root, "tools")
			folders := []string{tools}
			if systemd {
				folders = append(folders, filepath.Join(root, "run/systemd/system"))
			} else {
				c.did = ""
			}
			for _, folder := range folders {
				must(os.MkdirAll(folder, 0o755))
			}
			must(os.WriteFile(filepath.Join(tools, "systemctl"), []byte("#!/bin/sh\necho \"$@\" >&2\n"), 0o755))
			cmd := exec.Command("/bin/sh", append([]string{filepath.Join("..", scripts[c.script])}, strings.Fields(c.args)...)...)
			cmd.Env = []string{"PATH=" + tools + ":" + os.Getenv("PATH"), "DPKG_ROOT=" + root}
			var did strings.Builder
			cmd.Stderr = &did
			if err := cmd.Run(); err != nil || strings.Join(strings.Fields(did.String()), " ") != c.did {
				t.Errorf("%s %s, with systemd %v: did %q (%v), want %q", c.script, c.args, systemd, did.String(), err, c.did)
			}
		}
	}
}
