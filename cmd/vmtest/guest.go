package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// guestMain is the guest agent: it sets the VM up, runs the command and
// reports. It returns only if it cannot even report; the console says why.
func guestMain() int {
	control, err := openPort(controlPort)
	if err != nil {
		fmt.Println("vmtest: guest:", err)
		return 1
	}
	report := json.NewEncoder(control)
	result, err := runGuest(report)
	if err != nil {
		result = guestMessage{Error: err.Error()}
	}
	unix.Sync() // shared directories, before the VM is killed
	if err := report.Encode(result); err != nil {
		fmt.Println("vmtest: guest: report:", err)
		return 1
	}
	select {} // the machine ends the VM once it has the report
}

// runGuest sets up, says so, and runs the command.
func runGuest(report *json.Encoder) (guestMessage, error) {
	config, err := readGuestConfig()
	if err != nil {
		return guestMessage{}, err
	}
	if err := setUpGuest(config); err != nil {
		return guestMessage{}, err
	}
	if err := report.Encode(guestMessage{Ready: true}); err != nil {
		return guestMessage{}, fmt.Errorf("report: %w", err)
	}
	if err := awaitNodes(config); err != nil {
		return guestMessage{}, err
	}
	return runCommand(config)
}

func readGuestConfig() (guestConfig, error) {
	var config guestConfig
	data, err := os.ReadFile(filepath.Join(guestDir, "config.json"))
	if err != nil {
		return config, fmt.Errorf("guest configuration: %w", err)
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return config, fmt.Errorf("guest configuration: %w", err)
	}
	if config.Nodes == 0 {
		return config, nil
	}
	if config.Node, err = readNode("/proc/cmdline"); err != nil {
		return config, err
	}
	config.Env = append(config.Env, config.nodeEnv()...)
	return config, nil
}

// openPort opens the virtio-serial port of a name. There is no udev to make
// links, and the host announces names a moment after the driver has loaded.
func openPort(name string) (*os.File, error) {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if node := findPort(name); node != "" {
			file, err := os.OpenFile(node, os.O_WRONLY, 0)
			if err != nil {
				return nil, fmt.Errorf("serial port %s: %w", name, err)
			}
			return file, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("serial port %s does not appear", name)
		}
	}
}

func findPort(name string) string {
	files, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return "" // only for a malformed pattern
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(text)) == name {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(file)))
		}
	}
	return ""
}
