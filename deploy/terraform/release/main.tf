terraform {
  required_version = ">= 1.6"
  required_providers {
    helm = {
      source  = "hashicorp/helm"
      version = ">= 3.0"
    }
    kubernetes = {
      source  = "hashicorp/kubernetes"
      version = ">= 2.30"
    }
  }
}

variable "name" {
  description = "Name of the release."
  type        = string
  default     = "phalanx"
}

variable "namespace" {
  description = "Namespace of the control plane, which the module makes."
  type        = string
  default     = "phalanx-system"
}

variable "chart" {
  description = "Path of the chart, deploy/helm/phalanx of this repository."
  type        = string
}

variable "values" {
  description = "Documents of values, later ones first. They hold names of Secrets, and no secrets."
  type        = list(string)
  default     = []
}

resource "kubernetes_namespace_v1" "phalanx" {
  metadata {
    name = var.namespace
  }
}

resource "helm_release" "phalanx" {
  name      = var.name
  namespace = kubernetes_namespace_v1.phalanx.metadata[0].name
  chart     = var.chart
  values    = var.values
  atomic    = true
  timeout   = 600
}

output "url" {
  description = "URL of the API in the cluster, for a release with the default values."
  value       = "https://${helm_release.phalanx.name}.${helm_release.phalanx.namespace}.svc:7000"
}
