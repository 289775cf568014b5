package deploy_test

import (
	"maps"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// environment reads a file of NAME=value lines, those that are commented out
// included.
func environment(t *testing.T, file string) map[string]string {
	t.Helper()
	settings := map[string]string{}
	for line := range strings.Lines(replaced(t, file)) {
		if name, value, ok := strings.Cut(strings.TrimLeft(strings.TrimSpace(line), "#"), "="); ok && !strings.Contains(name, " ") {
			settings[name] = value
		}
	}
	return settings
}

func TestTheUnitStartsTheProgramAndWaitsForItsEnd(t *testing.T) {
	u := unit(t)
	command := strings.Fields(u["ExecStart"][0])
	if !slices.Equal(command[1:], []string{"serve"}) {
		t.Errorf("it starts %v", command)
	}
	settings := environment(t, "systemd/listedge.env")
	for name, file := range credentials(u) {
		if settings[name] = strings.TrimSpace(replaced(t, "systemd/"+filepath.Base(file))); !strings.Contains(settings[name], "://") {
			t.Errorf("%s has %s", file, settings[name])
		}
	}
	checkSettings(t, "the unit", slices.Sorted(maps.Keys(settings)), command[1:]...)
	if u["EnvironmentFile"][0] != "/etc/listedge/listedge.env" || settings["LISTEDGE_DATABASE_URL_FILE"] == "" {
		t.Error("its settings are elsewhere")
	}
	grace, err1 := time.ParseDuration(u["TimeoutStopSec"][0])
	drain, err2 := time.ParseDuration(settings["LISTEDGE_DRAIN"])
	if err1 != nil || err2 != nil || grace < drain+stopTimeout(t)+5*time.Second {
		t.Errorf("%s are too short for a drain of %s (%v %v)", grace, drain, err1, err2)
	}
}

// worstExposure is what systemd calls OK, from 0 to 100.
const worstExposure = "15"

func TestSystemdAcceptsTheUnit(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // there is no systemd to ask; the test above has read the unit
	}
	path := must1(program())
	file := write(t, "listedge.service", replaced(t, unitFile, "ExecStart=listedge serve", "ExecStart="+path+" serve"))
	for _, args := range [][]string{{"verify", file}, {"security", "--offline=true", "--threshold=" + worstExposure, file}} {
		said, err := exec.Command(tool("systemd-analyze"), args...).CombinedOutput()
		if err != nil || (args[0] == "verify" && len(said) > 0) { // of what it does not know it only warns
			t.Errorf("systemd-analyze %s: %v\n%s", args[0], err, said)
		}
	}
}
