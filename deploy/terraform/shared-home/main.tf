terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "name" {
  description = "Name of the file system."
  type        = string
}

variable "vpc_id" {
  description = "VPC of the mount targets."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets: one mount target each."
  type        = list(string)
}

variable "client_group_ids" {
  description = "Security groups that may mount: those of the nodes."
  type        = list(string)
}

variable "tags" {
  description = "Tags of all resources."
  type        = map(string)
  default     = {}
}

resource "aws_efs_file_system" "home" {
  creation_token  = var.name
  encrypted       = true
  throughput_mode = "elastic"
  tags            = merge(var.tags, { Name = var.name })
}

resource "aws_efs_backup_policy" "home" {
  file_system_id = aws_efs_file_system.home.id

  backup_policy {
    status = "ENABLED"
  }
}

resource "aws_security_group" "home" {
  name_prefix = "${var.name}-efs-"
  description = "Home of Phalanx"
  vpc_id      = var.vpc_id
  tags        = var.tags
}

resource "aws_vpc_security_group_ingress_rule" "nodes" {
  for_each                     = toset(var.client_group_ids)
  security_group_id            = aws_security_group.home.id
  referenced_security_group_id = each.value
  description                  = "Nodes"
  ip_protocol                  = "tcp"
  from_port                    = 2049
  to_port                      = 2049
}

resource "aws_efs_mount_target" "home" {
  for_each        = toset(var.subnet_ids)
  file_system_id  = aws_efs_file_system.home.id
  subnet_id       = each.value
  security_groups = [aws_security_group.home.id]
}

output "file_system_id" {
  description = "Value of `fileSystemId` in deploy/kubernetes/storage/efs.yaml."
  value       = aws_efs_file_system.home.id
}
