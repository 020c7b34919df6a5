package dashboards

// nodeHolders are whose work has which devices: of pods by the kubelet's word, of jobs by
// the processes that are on the GPUs. Both are off by default.
func nodeHolders() []panel {
	return []panel{
		&grid{spec: spec{title: "Jobs on GPUs", w: 8, h: 8, noValue: "None, or not asked for: --collector.jobs",
			description: "By the control group of each process that NVML names: Slurm's job and step, else the UID of a Kubernetes pod. A GPU that is given to a job and not used yet has no line.",
			queries:     []query{{expr: `max by (gpu_address, scheduler, job_id, step) (gdr_gpu_job_info{@node})`}}},
			sort: "GPU", columns: []column{gpuColumn, {label: "scheduler", title: "Scheduler", width: 95}, {label: "job_id", title: "Job"}, {label: "step", title: "Step", width: 90}}},
		&grid{spec: spec{title: "Devices given to pods", w: 10, h: 8, noValue: "None, or not asked for: --kubernetes.pod-resources",
			description: "As the kubelet says. A shared GPU has a line for each pod; a resource that stands for any of several RDMA devices names none.",
			queries:     []query{{expr: `max by (gpu_address, device, pod_namespace, pod_name, container_name, resource) (gdr_gpu_pod_info{@node} or gdr_rdma_device_pod_info{@node})`}}},
			sort: "GPU", columns: []column{gpuColumn, {label: "device", title: "NIC", width: 80}, {label: "pod_namespace", title: "Namespace"}, {label: "pod_name", title: "Pod"}, {label: "container_name", title: "Container"}, {label: "resource", title: "Resource"}}},
		&grid{spec: spec{title: "Whether that is known", w: 6, h: 8, noValue: "Not asked for",
			description: "Does the kubelet answer, since when is what it said (seconds ago), what was left out for its number, and whether the host's processes can be seen (host PID namespace).",
			queries: []query{{expr: `
				label_replace(max(gdr_pod_resources_up{@node}), "what", "kubelet answers", "", "")
				or label_replace(time() - max(gdr_pod_resources_timestamp_seconds{@node}), "what", "its answer's age", "", "")
				or label_replace(max(gdr_pod_resources_omitted_devices{@node}), "what", "devices left out", "", "")
				or label_replace(max(gdr_gpu_jobs_visible{@node}), "what", "processes visible", "", "")
				or label_replace(max(gdr_gpu_jobs_omitted{@node}), "what", "jobs left out", "", "")`}}},
			columns: []column{{label: "what", title: "What"}, {query: 0, title: "Value", width: 70, decimals: whole}}},
	}
}
