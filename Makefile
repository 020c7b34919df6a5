# gdr_exporter. `make help` lists what there is.

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
BRANCH   ?= $(shell git rev-parse --abbrev-ref HEAD 2>/dev/null || echo unknown)
INFO     := github.com/prometheus/common/version
LDFLAGS  := -X $(INFO).Version=$(VERSION) -X $(INFO).Revision=$(REVISION) -X $(INFO).Branch=$(BRANCH)

# go-nvml calls functions of a library that is not there at link time: they must
# be bound when they are called, not at start (a linker may do otherwise by
# default, as Ubuntu's does). Its many deprecated functions are no news.
LAZY := -extldflags=-Wl,-z,lazy
export GOFLAGS    += -ldflags=$(LAZY)
export CGO_ENABLED := 1
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOTESTSUM     := gotest.tools/gotestsum@v1.13.0
HELM          := helm.sh/helm/v4/cmd/helm@v4.3.2
NODE_EXPORTER := github.com/prometheus/node_exporter@v1.12.1

# What the build needs from Debian beside Go, and what the tests need.
BUILD_PACKAGES := gcc libc6-dev libibverbs-dev
VM_PACKAGES   := qemu-system-x86 busybox-static iproute2 kmod xz-utils zstd gcc make libc6-dev libelf1 perftest ibverbs-providers ibverbs-utils rdma-core cpio pciutils util-linux
TEST_PACKAGES := $(BUILD_PACKAGES) $(VM_PACKAGES) ethtool python3-prometheus-client chromium tidy prometheus prometheus-alertmanager shellcheck systemd

.PHONY: help go build run demo vm stack dashboards dashboards-preview test alerts chart chart-test chart-show image package release-snapshot deploy-soak test-short lint bench soak survival fuzz clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

go:
	@command -v go >/dev/null || { echo "Go 1.26 or later is needed: see 'Build' in README.md" >&2; exit 1; }

build: go ## install what the build needs and build bin/gdr_exporter
	@.ci/install $(BUILD_PACKAGES)
	go build -trimpath -ldflags "$(LDFLAGS) $(LAZY)" -o bin/gdr_exporter ./cmd/gdr_exporter

run: build ## build and run the exporter on this host
	@echo "Status page: http://localhost:10479/   metrics: http://localhost:10479/metrics   stop: Ctrl-C"
	@[ -e /sys/class/infiniband ] || echo "No RDMA devices on this host. To see a node with eight GPUs and NICs, replayed: make demo. To see real devices, in a test kernel with soft-RoCE: make vm"
	bin/gdr_exporter $(ARGS)

demo: build ## replay an H100 node on which GPUDirect RDMA is lost on one pair after two minutes
	@echo "Status page: http://localhost:10479/   metrics: http://localhost:10479/metrics   stop: Ctrl-C"
	@echo "Synthetic. After two minutes the pair of GPU 0000:18:00.0 and mlx5_0 goes bad; 30 s later that is confirmed."
	bin/gdr_exporter --replay=h100-8x8-demo $(ARGS)

vm: build ## run the exporter in a test kernel with four soft-RoCE devices and some traffic
	@.ci/install $(VM_PACKAGES)
	go build -o bin/vmtest ./cmd/vmtest
	bin/vmtest --timeout 24h --devices 4 --forward 10479 -- sh cmd/vmtest/show.sh bin/gdr_exporter

stack: go ## a real Prometheus and Alertmanager with the project's rules over replays, without Docker
	@.ci/install $(BUILD_PACKAGES) prometheus prometheus-alertmanager
	go run ./deploy/stack/run $(ARGS)

dashboards: go ## write the Grafana dashboards from their sources
	go generate ./dashboards

dashboards-preview: go ## draw each dashboard over replays into dist/dashboards/*.png (some minutes; Node 20.19 or later)
	@.ci/install $(BUILD_PACKAGES) prometheus chromium nodejs npm
	go run ./dashboards/preview/show $(ARGS)

test: go ## install what the tests need and run all of them, the kernel tests included
	@.ci/install $(TEST_PACKAGES)
	$$(.ci/gotool gotestsum $(GOTESTSUM)) --format pkgname -- -race -timeout 75m ./...
	$$(.ci/gotool gotestsum $(GOTESTSUM)) --format pkgname -- -timeout 60m -run '^(TestShow|TestFleet)$$' ./deploy/stack
	$(MAKE) chart-test

chart: go ## write what is generated from and for the Helm chart
	cd deploy/helm && go run ./generate

chart-test: go ## the tests of the Helm chart, which is a module of its own
	@.ci/install $(BUILD_PACKAGES)
	cd deploy/helm && go test -count=1 -timeout 60m ./... # not from the cache: it does not see what helm and the program do

chart-show: go ## the chart installed, upgraded and removed on a real API server, built here (some minutes)
	@.ci/install $(BUILD_PACKAGES) etcd-server curl openssl
	cd deploy/helm && GDR_KUBETEST=1 HELM=$$(../../.ci/gotool helm $(HELM)) go test -count=1 -run '^TestShow$$' -v -timeout 60m .

image: ## build the image here, without Docker (buildah, runc, a Debian of its own), and start it
	deploy/container/build-here
	deploy/container/try

package: build ## the .deb and .rpm in dist/packages
	strip -o bin/gdr_exporter.stripped bin/gdr_exporter
	deploy/packages/build bin/gdr_exporter.stripped $$(go env GOARCH) $(VERSION) dist/packages

release-snapshot: go ## archives, packages, SBOMs and checksums for amd64 and arm64 in dist/; needs no network once the tools are there
	deploy/release/snapshot

deploy-soak: build image release-snapshot ## packages installed, upgraded and removed, image, release, and the service under systemd in a test kernel
	@.ci/install $(VM_PACKAGES) debootstrap
	strip -o bin/gdr_exporter.stripped bin/gdr_exporter
	deploy/packages/try bin/gdr_exporter.stripped
	DEPLOY_SOAK=1 go test -count=1 -v -run TestService -timeout 30m ./deploy/systemd

alerts: go ## check the alert rules, Alertmanager's example and the runbooks, and run the rules' tests
	@.ci/install prometheus prometheus-alertmanager
	go test -count=1 -short ./deploy/... ./dashboards/...

test-short: go ## the tests that need no kernel of their own
	@.ci/install $(BUILD_PACKAGES)
	go test -short ./...

lint: go ## gofmt, go vet, golangci-lint
	@.ci/install $(BUILD_PACKAGES)
	@files=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$files" ] || { echo "not gofmt-ed: $$files" >&2; exit 1; }
	go vet ./...
	cd deploy/helm && go vet ./...
	linter=$$(.ci/gotool golangci-lint $(GOLANGCI_LINT)) && $$linter run ./... && cd deploy/helm && $$linter run ./...

bench: build ## compare the cost of a scrape with node_exporter's
	go build -o bin/scrapebench ./cmd/scrapebench
	go test -run '^$$' -bench . -benchmem ./rdma ./collector
	bin/scrapebench --exporter bin/gdr_exporter --node-exporter $$(.ci/gotool node_exporter $(NODE_EXPORTER))
	bin/scrapebench --exporter bin/gdr_exporter --node-exporter $$(.ci/gotool node_exporter $(NODE_EXPORTER)) --scaling

survival: build ## mutations of healthy captures (all of small hosts); what each exporter still serves when one device misbehaves (README's table)
	SURVIVAL=all go test -run '^TestSurvival' -timeout 60m -v ./collector
	go build -o bin/scrapebench ./cmd/scrapebench
	bin/scrapebench --exporter bin/gdr_exporter --node-exporter $$(.ci/gotool node_exporter $(NODE_EXPORTER)) --survival

soak: build ## long shows (a night): 10,000 scrapes, the survival table, a log of 1 GB, alerts in real time, 1,000 nodes, three nodes that measure each other, fuzzing
	go build -o bin/scrapebench ./cmd/scrapebench
	bin/scrapebench --exporter bin/gdr_exporter --soak 10000
	$(MAKE) survival
	@.ci/install $(VM_PACKAGES)
	go build -o bin/vmtest ./cmd/vmtest && go test -c -o bin/loopback.test ./rdma/loopback
	bin/vmtest --timeout 15m --devices 2 --env GDR_IN_KERNEL=1 --env LOOPBACK_LEAK_RUNS=2000 --env LOOPBACK_ROUNDS=5 -- bin/loopback.test -test.v -test.run 'TestInKernel(Leaks|Perftest|EndpointLeaks|EndpointPerftest)$$'
	yes "$$(cat collector/nccllog/testdata/one-bad-rail-2.23.log)" | head -c 1G | (ulimit -v 3000000; bin/gdr_exporter nccl-log -) || [ $$? = 1 ] # a log of 1 GB, in bounded memory
	@.ci/install prometheus prometheus-alertmanager
	$(MAKE) chart-show deploy-soak
	go run ./deploy/stack/cost -nodes 1000 -for 15m
	STACK_PEERS=1 go test -run 'TestPeers$$' -count=1 -v -timeout 1h ./deploy/stack
	STACK_UNSCALED=1 go test -run 'TestShow$$' -count=1 -v -timeout 8h ./deploy/stack
	$(MAKE) fuzz FUZZTIME=1m

FUZZTIME ?= 30s
fuzz: go ## fuzz every parser, FUZZTIME (30s) each, as many at a time as there are processors
	@.ci/install $(BUILD_PACKAGES)
	@.ci/fuzz $(FUZZTIME)

clean: ## remove what was built
	rm -rf bin
